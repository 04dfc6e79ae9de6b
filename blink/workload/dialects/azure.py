"""Azure LLM inference traces: 2023, 2024 (with time zone) and 2025 (with images)."""

from __future__ import annotations

from blink.workload.collector import Collector
from blink.workload.dialects.base import Dialect, Values
from blink.workload.row import Row

_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def _has_zone(first: Values) -> bool:
    """A time zone is Z or a sign after the time of day; the date's own hyphens stand before it."""
    time_of_day = str(first["TIMESTAMP"]).strip()[10:]
    return time_of_day.endswith("Z") or "+" in time_of_day or "-" in time_of_day


def _read_zoned(row: Row, collector: Collector) -> None:
    _read(row, collector, zoned=True)


def _read_naive(row: Row, collector: Collector) -> None:
    _read(row, collector, zoned=False)


def _read_images(row: Row, collector: Collector) -> None:
    images_count = row.whole("NumImages")
    if images_count < 0:
        row.refuse(f"NumImages {images_count} is negative; a number of images is 0 or more")
    if images_count:
        collector.tally("requests with images; ContextTokens is taken as given")
        collector.tally("images", images_count)
    _read(row, collector, zoned=False)


def _read(row: Row, collector: Collector, zoned: bool) -> None:
    arrival_ns, has_zone = row.instant_ns("TIMESTAMP")
    if has_zone != zoned:
        found, others = ("a", "none") if has_zone else ("no", "one")
        row.refuse(f"TIMESTAMP '{row.values['TIMESTAMP']}' has {found} time zone; the dialect's rows have {others}")
    collector.add(row.number, arrival_ns, row.prompt_tokens("ContextTokens"), row.output_tokens("GeneratedTokens"))


AZURE_2023 = Dialect(
    name="azure-2023",
    needs=(_COLUMNS,),
    is_json=False,
    read=_read_naive,
    says="CSV with TIMESTAMP (calendar time without zone), ContextTokens, GeneratedTokens",
    fits=lambda first: not _has_zone(first),
)
AZURE_2024 = Dialect(
    name="azure-2024",
    needs=(_COLUMNS,),
    is_json=False,
    read=_read_zoned,
    says="CSV with TIMESTAMP (calendar time with zone), ContextTokens, GeneratedTokens",
    fits=_has_zone,
)
AZURE_2025 = Dialect(
    name="azure-2025",
    needs=((*_COLUMNS, "NumImages"),),
    is_json=False,
    read=_read_images,
    says="CSV with TIMESTAMP (calendar time without zone), NumImages, ContextTokens, GeneratedTokens",
)
