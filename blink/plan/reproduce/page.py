"""The report as one HTML page that needs no other file: sums, figures, every fact, reasons, calibration, method."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from html import escape

from blink import __version__
from blink.plan.reproduce import words
from blink.plan.reproduce.carry_out import Reproduction
from blink.plan.reproduce.facts import calibration
from blink.plan.reproduce.terminal import warnings
from blink.plan.reproduce.verdict import Verdict, totals

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1b1f24; max-width: 1180px; margin: 2.5rem auto; }
body { padding: 0 1.25rem; }
h1 { font-size: 1.7rem; margin-bottom: .2rem; } h2 { font-size: 1.2rem; margin-top: 2.6rem; }
p, li { max-width: 46rem; } .dim { color: #6a737d; } .warn { color: #8a5300; font-weight: 600; }
table { border-collapse: collapse; width: 100%; font-size: 13.5px; }
th { text-align: left; font-weight: 600; color: #6a737d; } td, th { padding: .3rem .7rem .3rem 0; vertical-align: top; }
tr { border-bottom: 1px solid #e4e8ec; } td.number { font-variant-numeric: tabular-nums; }
tr.fact td { border-bottom: 0; padding-top: .9rem; } .ok { color: #2c6e43; } .miss { color: #b3392f; font-weight: 600; }
img { width: 100%; height: auto; } code { font-size: .92em; } pre { overflow-x: auto; font-size: 12.5px; }
.sums { font-size: 1.1rem; } details { margin: .15rem 0 0; } summary { color: #6a737d; cursor: pointer; }
"""


def to_html(found: Reproduction, figures: Mapping[str, str], sections: Mapping[str, str]) -> str:
    """The page. `figures` maps a caption to SVG text, `sections` a title to preformatted text."""
    parts = ["<h1>The published facts and the twin</h1>", f'<p class="dim">{escape(_method(found))}</p>']
    parts += [f'<p class="warn">{escape(line)}</p>' for line in warnings(found)]
    parts += [f'<p class="sums">{escape(line)}</p>' for line in words.summary(totals(found.verdicts))]
    for caption, svg in figures.items():
        coded = base64.b64encode(svg.encode()).decode()
        parts += [
            f"<h2>{escape(caption)}</h2>",
            f'<img alt="{escape(caption)}" src="data:image/svg+xml;base64,{coded}">',
        ]
    parts += ["<h2>Every fact</h2>", _facts(found)]
    parts += ["<h2>What constants were calibrated on</h2>", _calibration()]
    for title, text in sections.items():
        parts += [f"<h2>{escape(title)}</h2>", f"<pre>{escape(text)}</pre>"]
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Blink: the published facts and the twin</title>\n<style>{STYLE}</style>\n</head>\n"
        f"<body>\n{body}\n</body>\n</html>\n"
    )


def _method(found: Reproduction) -> str:
    bed = found.bed
    rates = ", ".join(f"{rate:g}" for rate in bed.rates)
    return (
        f"blink {__version__}. {found.run_count:,} simulated runs: Poisson arrivals at {rates} requests/s for "
        f"{bed.duration_s:g} s, ShareGPT-like lengths, {bed.seeds} seeds. As guidellm does, only requests that were "
        "complete by then count, and TPOT is a request's whole latency over its tokens. Geometric means over seeds, "
        "and over Blink's pre-saturation rates where the fact says so."
    )


def _facts(found: Reproduction) -> str:
    rows = ["<table>", "<tr><th></th><th>published</th><th>twin</th><th>error</th><th>use</th><th></th></tr>"]
    last = ""
    for verdict in found.verdicts:
        if verdict.fact.id != last:
            last = verdict.fact.id
            rows.append(
                f'<tr class="fact"><td colspan="6"><code>{escape(last)}</code><br>{escape(verdict.fact.says)}</td></tr>'
            )
        rows.append(_row(verdict))
    return "\n".join([*rows, "</table>"])


def _row(verdict: Verdict) -> str:
    sign = words.mark(verdict)
    notes = [text for text in (words.each(verdict), verdict.prediction.note, verdict.prediction.absent) if text]
    if verdict.reason:
        notes.append(f"Most likely: {verdict.reason}")
    more = "".join(f'<br><span class="dim">{escape(text)}</span>' for text in notes)
    return (
        f"<tr><td>{escape(words.name(verdict.fact, verdict.quantity))}</td>"
        f'<td class="number">{escape(words.published(verdict.quantity))}</td>'
        f'<td class="number">{escape(words.predicted(verdict))}{more}</td>'
        f'<td class="number">{escape(verdict.word)}</td><td>{verdict.use}</td><td class="{sign}">{sign}</td></tr>'
    )


def _calibration() -> str:
    items = [
        f"<li><code>{escape(table['id'])}</code> ({escape(', '.join(table['quantities']))}) sets "
        f"{escape('; '.join(table['sets']))}. {escape(table['how'])}</li>"
        for table in calibration()
    ]
    return f"<ol>{''.join(items)}</ol>"
