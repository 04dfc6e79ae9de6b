"""The page that every report is: title, answer, numbers, sections; one HTML file, no script, nothing fetched."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from blink import __version__

RESTS_ON = "Simulated results rest on the models and constants that docs/models.md lists, with their sources."
STYLE = Path(__file__).with_name("style.css")


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and what stands below it, as HTML."""

    title: str
    body: str


@dataclass(frozen=True, slots=True)
class Page:
    """A whole report; all but the bodies of sections is plain text.

    `tiles` are (value, what it is). `warnings` stand before everything but the answer.
    """

    title: str
    setting: str
    answer: str
    tiles: Sequence[tuple[str, str]] = ()
    warnings: Sequence[str] = ()
    sections: Sequence[Section] = field(default_factory=list)


def to_html(page: Page) -> str:
    """The file. The same page gives the same text."""
    parts = [
        f"<h1>{escape(page.title)}</h1>",
        f'<p class="dim">{escape(page.setting)}</p>',
        f'<p class="answer">{escape(page.answer)}</p>',
    ]
    parts += [f'<p class="warn">{escape(line)}</p>' for line in page.warnings]
    if page.tiles:
        parts.append(tiles(page.tiles))
    for section in page.sections:
        parts += [f"<section><h2>{escape(section.title)}</h2>", section.body, "</section>"]
    parts.append(f"<footer>blink {__version__}. {RESTS_ON}</footer>")
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(page.title)}</title>\n<style>\n{STYLE.read_text(encoding='utf-8')}</style>\n</head>\n"
        f"<body>\n{body}\n</body>\n</html>\n"
    )


def tiles(pairs: Iterable[tuple[str, str]]) -> str:
    """A row of numbers, each with what it is."""
    shown = "".join(
        f'<div class="tile"><b>{escape(value)}</b><span>{escape(words)}</span></div>' for value, words in pairs
    )
    return f'<div class="tiles">{shown}</div>'


def table(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    words: Sequence[int] = (),
    over: Sequence[int] = (),
    folds: bool = False,
) -> str:
    """A table of cells that are HTML already; columns in `words` hold text, rows in `over` are dimmed.

    One that `folds` has too many columns for a phone: there each row is a card, its cells below their headings.
    """
    mark = [' class="words"' if index in words else "" for index in range(len(headings))]
    named = [f' data-label="{escape(text)}"' if folds and text else "" for text in headings]
    head = "".join(f"<th{cls}>{escape(text)}</th>" for text, cls in zip(headings, mark, strict=True))
    lines = []
    for index, row in enumerate(rows):
        cells = "".join(f"<td{cls}{name}>{cell}</td>" for cell, cls, name in zip(row, mark, named, strict=True))
        dimmed = ' class="over"' if index in over else ""
        lines.append(f"<tr{dimmed}>{cells}</tr>")
    body = f"<thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody>"
    return f'<div class="wide{" folds" if folds else ""}"><table>{body}</table></div>'


def charts(figures: Iterable[str]) -> str:
    """Charts side by side, as many as there is room for."""
    return f'<div class="charts">{"".join(f"<figure>{svg}</figure>" for svg in figures)}</div>'


def dots(entries: Iterable[tuple[str, str, bool]]) -> str:
    """What dots mean: (name, CSS colour, whether it is filled)."""
    shown = "".join(
        f'<span><i class="dot" style="border-color: {colour}; background: {colour if filled else "none"}"></i>'
        f"{escape(name)}</span>"
        for name, colour, filled in entries
    )
    return f'<div class="legend">{shown}</div>'


def legend(entries: Iterable[tuple[str, str, str]]) -> str:
    """What lines mean: (name, CSS colour, CSS border style)."""
    shown = "".join(
        f'<span><i style="border-top-color: {colour}; border-top-style: {line}"></i>{escape(name)}</span>'
        for name, colour, line in entries
    )
    return f'<div class="legend">{shown}</div>'


def details(summary: str, body: str, *, opened: bool = False) -> str:
    """What can be folded away; open in print, where nothing can be unfolded, because the style hides the handle."""
    return f"<details{' open' if opened else ''}><summary>{escape(summary)}</summary>{body}</details>"


def note(text: str) -> str:
    """Small print."""
    return f'<p class="note">{escape(text)}</p>'


def items(lines: Iterable[str]) -> str:
    """A list of sentences."""
    return f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>"


def pre(text: str) -> str:
    """Text as it stands."""
    return f"<pre>{escape(text)}</pre>"


def badge(word: str) -> str:
    """A verdict in a word."""
    return f'<span class="badge {escape(word)}">{escape(word)}</span>'
