"""What a dialect is: how to know it by its content, and how to turn one of its rows into requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from blink.workload.collector import Collector
from blink.workload.row import Row

Values = Mapping[str, object]


def _always(first: Values) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Dialect:
    """A dialect of trace file.

    needs        the columns or keys, any of these sets, by which it is known; others may stand beside them, unread
    is_json      JSON lines or a JSON array of objects, else CSV with a header
    read         adds a row's requests to the collector; raises UnusableError for a row that cannot be a request and
                 InputError for a broken one
    says         one line for error messages and the documentation: what it needs and in which unit its time is
    has_arrivals False when it holds lengths only
    fits         a further look at the first row, where two dialects have the same columns
    notes        what every report of this dialect must say
    block_tokens tokens of a block of which the dialect has a hash; 0 if it has none
    """

    name: str
    needs: tuple[tuple[str, ...], ...]
    is_json: bool
    read: Callable[[Row, Collector], None]
    says: str
    has_arrivals: bool = True
    fits: Callable[[Values], bool] = _always
    notes: tuple[str, ...] = ()
    block_tokens: int = 0

    def matches(self, is_json: bool, columns: frozenset[str], first: Values) -> bool:
        """Whether a file with these columns or keys and this first row is of this dialect."""
        in_container = self.is_json == is_json or self.name in BOTH_CONTAINERS
        return in_container and any(columns.issuperset(needs) for needs in self.needs) and self.fits(first)


UNUSED_HASHES = "prefix hashes are not read: every prompt is prefilled in full"
"""What a report says unless serving.prefix_caching is on."""


def hashes(row: Row) -> tuple[int, ...]:
    """The hashes of a prompt's blocks, from its beginning; none where the row has no list of whole numbers."""
    found = row.values.get("hash_ids")
    if not isinstance(found, list) or not all(type(entry) is int for entry in found):
        return ()
    return tuple(found)


# LLMServingSim's flat requests are exchanged as JSON lines and, without token ids, as CSV.
BOTH_CONTAINERS = frozenset({"llmservingsim"})
