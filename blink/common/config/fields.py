"""What every section of a scenario is made of: frozen tables, described options, findings that span several options."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

Int = Annotated[int, Field(strict=True)]
Float = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Bool = Annotated[bool, Field(strict=True)]
Text = Annotated[str, Field(strict=True, min_length=1)]

REQUIRED: Any = ...


class Table(BaseModel):
    """A TOML table: no unknown keys, no change after it was read."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=False)


def option(default: Any, text: str, unit: str = "", **bounds: Any) -> Any:
    """One key of a table: its default (REQUIRED: none), what it means, its unit, and the bounds pydantic enforces."""
    extra: dict[str, Any] = {"unit": unit} if unit else {}
    return Field(default, description=text, json_schema_extra=extra, **bounds)


def refuse(field: str, message: str) -> PydanticCustomError:
    """The error of a rule that spans several options; `field` is relative to the table that checks the rule."""
    return PydanticCustomError("rule", "{message}", {"field": field, "message": message})
