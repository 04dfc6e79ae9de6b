"""Draws docs/states.svg, the states of a slot and its transitions, and fills the generated tables of docs/protocol.md.

Run `python -m blink.report.diagram` after a change of the tables; a test compares the checked-in files with this text.
The state graph is a networkx graph made from the protocol's table; boxes stand where a person put them, and every
arrow, name, colour and owner comes from the graph.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

import networkx as nx

from blink.common.protocol_tables import filled_page
from blink.common.states import OWNER, Actor, SlotState, SlotStatus
from blink.common.transitions import TRANSITIONS

S = SlotState
_WIDTH, _HEIGHT = 1390, 486


@dataclass(frozen=True, slots=True)
class _Box:
    """A rectangle by its centre, in pixels."""

    x: int
    y: int
    width: int = 190
    height: int = 62


@dataclass(frozen=True, slots=True)
class _Route:
    """An arrow through points, with its label's first baseline; `curve` makes four points one smooth curve."""

    points: tuple[tuple[int, int], ...]
    label: tuple[int, int]
    anchor: str = "middle"
    curve: bool = False


_BOXES = {
    S.EMPTY: _Box(115, 235),
    S.PREFILL_PENDING: _Box(455, 235),
    S.PREFILL_PROCESSING: _Box(795, 235),
    S.DECODE_PROCESSING: _Box(1135, 235),
    S.DECODE_PAUSED: _Box(1135, 75),
    S.DECODE_COMPLETED: _Box(795, 435, 870),
}
_ROUTES = {
    (S.EMPTY, S.PREFILL_PENDING): _Route(((210, 235), (360, 235)), (283, 225)),
    (S.PREFILL_PENDING, S.PREFILL_PROCESSING): _Route(((550, 235), (700, 235)), (623, 225)),
    (S.PREFILL_PROCESSING, S.DECODE_PROCESSING): _Route(((890, 235), (1040, 235)), (963, 225)),
    (S.PREFILL_PENDING, S.DECODE_COMPLETED): _Route(((455, 266), (455, 404)), (467, 339), "start"),
    (S.PREFILL_PROCESSING, S.DECODE_COMPLETED): _Route(((795, 266), (795, 404)), (807, 330), "start"),
    (S.DECODE_PROCESSING, S.DECODE_COMPLETED): _Route(((1135, 266), (1135, 404)), (1147, 330), "start"),
    (S.DECODE_PROCESSING, S.DECODE_PROCESSING): _Route(
        ((1230, 218), (1275, 206), (1275, 264), (1230, 252)), (1274, 239), "start", curve=True
    ),
    (S.DECODE_PROCESSING, S.DECODE_PAUSED): _Route(((1100, 204), (1100, 106)), (1088, 159), "end"),
    (S.DECODE_PAUSED, S.DECODE_PROCESSING): _Route(((1170, 106), (1170, 204)), (1182, 159), "start"),
    (S.DECODE_PAUSED, S.DECODE_COMPLETED): _Route(
        ((1230, 75), (1370, 75), (1370, 435), (1230, 435)), (1359, 339), "end"
    ),
    (S.DECODE_COMPLETED, S.EMPTY): _Route(((360, 435), (115, 435), (115, 266)), (241, 425)),
}
_CORNER = 14
_LINE = 18

_STYLE = """\
  text { font: 14px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #1f2328; }
  .name { font-size: 15px; font-weight: 600; }
  .small { font-size: 12px; fill: #57606a; }
  .title { font: 600 20px system-ui, "Segoe UI", "DejaVu Sans", sans-serif; }
  .words { font: 14px system-ui, "Segoe UI", "DejaVu Sans", sans-serif; fill: #57606a; }
  .page { fill: #ffffff; }
  .box { stroke-width: 1.75; }
  .frontend.box { fill: #d8f3ec; stroke: #0f766e; }
  .gpu.box { fill: #ebe6fc; stroke: #6845c9; }
  .arrow { fill: none; stroke-width: 1.75; }
  .frontend.arrow { stroke: #0f766e; }
  .gpu.arrow { stroke: #6845c9; }
  .frontend.head { fill: #0f766e; }
  .gpu.head { fill: #6845c9; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; }
    .small, .words { fill: #a5b0bb; }
    .page { fill: #0d1117; }
    .frontend.box { fill: #0c3530; stroke: #2dd4bf; }
    .gpu.box { fill: #2b2350; stroke: #a78bfa; }
    .frontend.arrow { stroke: #2dd4bf; }
    .gpu.arrow { stroke: #a78bfa; }
    .frontend.head { fill: #2dd4bf; }
    .gpu.head { fill: #a78bfa; }
  }
"""


def state_graph() -> nx.MultiDiGraph[SlotState]:
    """States as nodes with their `owner`; an edge for each (transition, source state), keyed by id, with its `row`."""
    graph: nx.MultiDiGraph[SlotState] = nx.MultiDiGraph()
    for state in SlotState:
        graph.add_node(state, owner=OWNER[state])
    for row in TRANSITIONS:
        for source in row.sources:
            graph.add_edge(source, row.target, key=row.id, row=row)
    return graph


def states_svg() -> str:
    """The whole picture. Raises KeyError if a state or a transition has no place in it yet."""
    graph = state_graph()
    size = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="title description">',
            '<title id="title">The states of a slot</title>',
            f'<desc id="description">{escape(_description())}</desc>',
            f"<style>\n{_STYLE}</style>",
            f"<defs>{_head(Actor.FRONTEND)}{_head(Actor.GPU)}</defs>",
            f'<rect class="page" width="{_WIDTH}" height="{_HEIGHT}"/>',
            *_legend(),
            *(_arrow(graph, source, target) for source, target in dict.fromkeys(graph.edges())),
            *(_state(state, graph.nodes[state]["owner"]) for state in graph),
            "</svg>\n",
        ]
    )


def _description() -> str:
    return "; ".join(
        f"{row.id} {row.name}: {', '.join(source.label for source in row.sources)} to {row.target.label}, "
        f"by the {row.actor.label}"
        for row in TRANSITIONS
    )


def _head(actor: Actor) -> str:
    return (
        f'<marker id="{actor.label}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="10" markerHeight="10" '
        f'markerUnits="userSpaceOnUse" orient="auto"><path class="{actor.label} head" d="M0 0.5L10 5L0 9.5z"/></marker>'
    )


def _legend() -> list[str]:
    lines = [_text(20, 46, "The states of a slot", "title")]
    owners = (
        (Actor.FRONTEND, "owned and moved by the frontend (DPU)"),
        (Actor.GPU, "owned and moved by the gpu (persistent scheduler)"),
    )
    for number, (actor, words) in enumerate(owners):
        y = 68 + 28 * number
        lines.append(f'<rect class="{actor.label} box" x="20" y="{y}" width="28" height="18" rx="5"/>')
        lines.append(_text(58, y + 14, words, "words"))
    return lines


def _state(state: SlotState, actor: Actor) -> str:
    box, owner = _BOXES[state], actor.label
    left, top = box.x - box.width // 2, box.y - box.height // 2
    note = f"{state.value} · {owner}"
    if state == S.DECODE_COMPLETED:
        note += " · status: " + ", ".join(status.label for status in SlotStatus if status != SlotStatus.NONE)
    return "\n".join(
        [
            f'<rect class="{owner} box" x="{left}" y="{top}" width="{box.width}" height="{box.height}" rx="10"/>',
            _text(box.x, box.y - 3, state.label, "name", "middle"),
            _text(box.x, box.y + 17, note, "small", "middle"),
        ]
    )


def _arrow(graph: nx.MultiDiGraph[SlotState], source: SlotState, target: SlotState) -> str:
    rows = [edge["row"] for edge in graph.get_edge_data(source, target).values()]
    route, actor = _ROUTES[source, target], rows[0].actor.label
    x, y = route.label
    labels = [
        _text(x, y + _LINE * number, f"{row.id.replace(chr(39), '′')} {row.name}", "", route.anchor)
        for number, row in enumerate(rows)
    ]
    path = _curve(route.points) if route.curve else _bent(route.points)
    return "\n".join([f'<path class="{actor} arrow" marker-end="url(#{actor})" d="{path}"/>', *labels])


def _curve(points: tuple[tuple[int, int], ...]) -> str:
    start, *controls = points
    return f"M{start[0]} {start[1]}C" + " ".join(f"{x} {y}" for x, y in controls)


def _bent(points: tuple[tuple[int, int], ...]) -> str:
    """A path of level and upright lines whose corners are rounded."""
    path = f"M{points[0][0]} {points[0][1]}"
    for before, corner, after in zip(points, points[1:], points[2:], strict=False):
        (x0, y0), (x1, y1) = _towards(corner, before), _towards(corner, after)
        path += f"L{x0} {y0}Q{corner[0]} {corner[1]} {x1} {y1}"
    return f"{path}L{points[-1][0]} {points[-1][1]}"


def _towards(corner: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    """The point one corner radius from `corner` in the direction of `other`."""
    sign_x, sign_y = ((a > b) - (a < b) for a, b in zip(other, corner, strict=True))
    return corner[0] + sign_x * _CORNER, corner[1] + sign_y * _CORNER


def _text(x: int, y: int, words: str, style: str = "", anchor: str = "start") -> str:
    kind = f' class="{style}"' if style else ""
    place = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text{kind} x="{x}" y="{y}"{place}>{escape(words)}</text>'


def docs_path() -> Path:
    """The folder of the documentation in a source checkout."""
    return Path(__file__).resolve().parents[2] / "docs"


def main() -> int:
    """Write the picture and the tables into the source checkout."""
    picture, page = docs_path() / "states.svg", docs_path() / "protocol.md"
    picture.write_text(states_svg(), encoding="utf-8")
    page.write_text(filled_page(page.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"wrote {picture} and the tables of {page}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
