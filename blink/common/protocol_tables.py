"""The tables of docs/protocol.md, generated from the protocol's own: the page holds no second copy of any fact.

In the page each stands between `<!-- generated: NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from blink.common import layout
from blink.common.events import COLUMNS, CONSTANT_COLUMNS, EVENT_RULES, EVIDENCE, TRANSITION_EVENTS
from blink.common.states import OWNER, SlotState, SlotStatus
from blink.common.transitions import SYSTEM_EVENTS, TRANSITIONS

_BLOCK = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def filled_page(page: str) -> str:
    """The page with every generated block renewed. Raises KeyError for a block that has no table."""
    return _BLOCK.sub(lambda found: f"{found[1]}\n{TABLES[found[2]]()}\n{found[3]}", page)


def _table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = ["| " + " | ".join(headings) + " |", "|" + "---|" * len(headings)]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _labels(members: Iterable[SlotState | SlotStatus]) -> str:
    return ", ".join(f"`{member.label}`" for member in members)


def states_table() -> str:
    """States with their values and owners."""
    return _table(
        ("value", "state", "owner"), ((state.value, f"`{state.label}`", OWNER[state].label) for state in SlotState)
    )


def statuses_table() -> str:
    """Statuses with the transitions that give them."""
    rows = []
    for status in SlotStatus:
        by = [f"`{row.name}`" for row in TRANSITIONS if status in row.statuses]
        given = "every other transition" if status == SlotStatus.NONE else ", ".join(by)
        rows.append((status.value, f"`{status.label}`", given))
    return _table(("value", "status", "given by"), rows)


def transitions_table() -> str:
    """T1 to T10."""
    return _table(
        ("#", "transition", "from", "to", "actor", "guard", "token count", "effect"),
        (
            (
                row.id.replace("'", "′"),
                f"`{row.name}`",
                _labels(row.sources),
                f"`{row.target.label}`",
                row.actor.label,
                row.guard,
                row.count.value,
                row.effect,
            )
            for row in TRANSITIONS
        ),
    )


def system_table() -> str:
    """E1 to E3."""
    return _table(
        ("#", "event", "actor", "guard", "effect"),
        ((row.id, row.name, row.actor.label, row.guard, row.effect) for row in SYSTEM_EVENTS),
    )


def words_table() -> str:
    """The bit fields of the 64-bit words."""
    words = (("ctl", layout.CTL_FIELDS), ("pulse", layout.PULSE_FIELDS), ("cancel", layout.CANCEL_FIELDS))
    return _table(
        ("word", "fields from the low bit up, with their bits"),
        ((f"`{name}`", ", ".join(f"{field.name} {field.bits}" for field in fields)) for name, fields in words),
    )


def structures_table() -> str:
    """Byte offsets of every field."""
    widths = {"Q": "u64", "I": "u32", "f": "f32"}
    structures = (
        (f"status, {layout.STATUS_STRIDE_BYTES} bytes a slot", layout.STATUS_FIELDS),
        (f"descriptor, {layout.DESCRIPTOR_STRIDE_BYTES} bytes a slot", layout.DESCRIPTOR_FIELDS),
        (f"ring header, {layout.HEADER_BYTES} bytes", layout.HEADER_FIELDS),
    )
    return _table(
        ("structure", "offset", "field", "type"),
        (
            (name if field is fields[0] else "", f"0x{field.offset:02X}", f"`{field.name}`", widths[field.code])
            for name, fields in structures
            for field in fields
        ),
    )


def events_table() -> str:
    """The events of a trace that are no transitions, with the columns that they must fill."""
    rows = [
        (f"`{event.label}`", "either" if rule.actor is None else rule.actor.label, ", ".join(rule.required) or "none")
        for event, rule in EVENT_RULES.items()
        if event not in TRANSITION_EVENTS
    ]
    return _table(("event", "actor", "columns it must fill"), rows)


def columns_list() -> str:
    """The columns of a trace, in order."""
    return ", ".join(f"`{name}`" for name in (*CONSTANT_COLUMNS, *(column.name for column in COLUMNS))) + ".\n"


def optional_table() -> str:
    """Columns that a backend fills only if it can."""
    return _table(
        ("column", "stands in", "holds", "shows whether"),
        (
            (
                f"`{row.column}`",
                ", ".join(f"`{event.label}`" for event in row.events),
                row.holds,
                f"{row.shows} ({', '.join(row.invariants)})",
            )
            for row in EVIDENCE
        ),
    )


def evidence_table() -> str:
    """Which events show which invariant: the table of the checker's own documentation."""
    from blink.common import checker  # it imports most of the package, which a table of states does not need

    return "\n".join(line for line in (checker.__doc__ or "").splitlines() if line.startswith("|")) + "\n"


TABLES: dict[str, Callable[[], str]] = {
    "states": states_table,
    "statuses": statuses_table,
    "transitions": transitions_table,
    "system": system_table,
    "words": words_table,
    "structures": structures_table,
    "events": events_table,
    "columns": columns_list,
    "optional": optional_table,
    "evidence": evidence_table,
}
"""Every generated block by its name in the page."""
