"""RangeTracker: what a run really asked of the model, so that its summary can say where constants were stretched."""

from __future__ import annotations


class RangeTracker:
    """Smallest and largest batch, kv_tokens, sequence and tokens that were asked for; a few comparisons per step."""

    __slots__ = ("_observed",)

    def __init__(self) -> None:
        self._observed: dict[str, tuple[int, int]] = {}

    def decode(self, batch: int, kv_tokens: int) -> None:
        """Note one decode step."""
        self._note("batch", batch)
        self._note("kv_tokens", kv_tokens)

    def prefill(self, batch: int, sequence: int) -> None:
        """Note one prefill step of a captured shape."""
        self._note("sequence", sequence)
        self._note("tokens", batch * sequence)

    def observed(self) -> dict[str, tuple[int, int]]:
        """Quantity -> (smallest, largest), for `StepModel.range_violations`."""
        return dict(self._observed)

    def _note(self, name: str, value: int) -> None:
        known = self._observed.get(name)
        if known is None:
            self._observed[name] = (value, value)
        elif value < known[0]:
            self._observed[name] = (value, known[1])
        elif value > known[1]:
            self._observed[name] = (known[0], value)
