"""The picture and the tables of the documentation are those of the protocol."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections import Counter

import networkx
import pytest

from blink.common.protocol_tables import TABLES, filled_page
from blink.common.states import OWNER, SlotState
from blink.common.transitions import LEGAL_TRIPLES, TRANSITIONS
from blink.report.diagram import docs_path, states_svg

SVG = "{http://www.w3.org/2000/svg}"


def test_the_checked_in_picture_is_up_to_date() -> None:
    assert (docs_path() / "states.svg").read_text(encoding="utf-8") == states_svg(), "python -m blink.report.diagram"


def test_the_checked_in_page_is_up_to_date_and_has_every_table() -> None:
    page = (docs_path() / "protocol.md").read_text(encoding="utf-8")
    assert filled_page(page) == page, "python -m blink.report.diagram"
    assert sorted(re.findall(r"<!-- generated: (\w+) -->", page)) == sorted(TABLES)


def test_filling_renews_old_blocks_and_leaves_the_rest() -> None:
    page = "before\n<!-- generated: states -->\nold\n<!-- end -->\nafter\n"
    filled = filled_page(page)
    assert filled.startswith("before\n<!-- generated: states -->\n\n| value | state | owner |")
    assert filled.endswith("<!-- end -->\nafter\n")
    assert "old" not in filled
    with pytest.raises(KeyError, match="nonsense"):
        filled_page("<!-- generated: nonsense -->\n<!-- end -->")


def test_every_state_and_transition_is_in_the_picture_once_an_arrow() -> None:
    root = ElementTree.fromstring(states_svg())
    texts = Counter(element.text for element in root.iter(f"{SVG}text"))
    for state in SlotState:
        assert texts[state.label] == 1
    for row in TRANSITIONS:
        assert texts[f"{row.id} {row.name}".replace("'", "′")] == len(row.sources), row.name
    arrows = [element for element in root.iter(f"{SVG}path") if "marker-end" in element.attrib]
    colours = Counter(arrow.attrib["class"] for arrow in arrows)
    assert colours == Counter(f"{actor.label} arrow" for _, _, actor in LEGAL_TRIPLES)
    boxes = Counter(element.attrib["class"] for element in root.iter(f"{SVG}rect") if "box" in element.attrib["class"])
    legend = Counter(["frontend box", "gpu box"])
    assert boxes == Counter(f"{OWNER[state].label} box" for state in SlotState) + legend


def test_the_graph_of_states_has_no_dead_end() -> None:
    """L1 in its simplest form: every state leads back to empty, and empty leads to every state."""
    graph = networkx.DiGraph((source, target) for source, target, _ in LEGAL_TRIPLES)
    assert set(graph) == set(SlotState)
    assert networkx.is_strongly_connected(graph)
