"""ShareGPT conversations: texts without token counts and without times."""

from __future__ import annotations

from blink.workload.collector import Collector
from blink.workload.dialects.base import Dialect
from blink.workload.message import MessageProfile
from blink.workload.numbers import UnusableError, shown
from blink.workload.row import Row

_ASKS = frozenset({"human", "user"})
_ANSWERS = frozenset({"gpt", "chatgpt", "assistant", "bing", "bard"})


def _read(row: Row, collector: Collector) -> None:
    """Each answered human turn is a request; its prompt is the conversation so far, since a server keeps no chat."""
    turns = _turns(row)
    if not turns:
        raise UnusableError("empty conversation")
    if turns[0][0] in _ANSWERS:
        raise UnusableError("conversation starts with gpt")
    bytes_per_token = MessageProfile.load().prompt_bytes_per_token
    context_bytes, asked = 0, False
    for index, (speaker, text) in enumerate(turns):
        if collector.full:
            return
        text_bytes = len(text.encode("utf-8", "surrogatepass"))
        if speaker in _ANSWERS:
            if asked and text_bytes and context_bytes:
                collector.add(row.number, 0, -(-context_bytes // bytes_per_token), -(-text_bytes // bytes_per_token))
            else:
                collector.skip("turn with an empty text" if asked else "answer without a question")
        elif asked and speaker in _ASKS:
            collector.skip("question without an answer")
        asked = speaker in _ASKS or (asked and speaker not in _ANSWERS)
        context_bytes += text_bytes
        if asked and index == len(turns) - 1:
            collector.skip("question without an answer")


def _turns(row: Row) -> list[tuple[str, str]]:
    conversation = row.values.get("conversations")
    if not isinstance(conversation, list):
        row.refuse(f"conversations {shown(conversation)} is not a list")
    turns: list[tuple[str, str]] = []
    for index, turn in enumerate(conversation):
        speaker, text = (turn.get("from"), turn.get("value")) if isinstance(turn, dict) else (None, None)
        if not (isinstance(speaker, str) and isinstance(text, str)):
            row.refuse(f"conversations[{index}] {shown(turn)} has no texts 'from' and 'value'")
        turns.append((speaker, text))
    return turns


SHAREGPT = Dialect(
    name="sharegpt",
    needs=(("conversations",),),
    is_json=True,
    read=_read,
    says="JSON array or lines of objects with conversations: a list of {from, value}",
    has_arrivals=False,
    notes=(
        "token counts are estimates: UTF-8 bytes / 4, rounded up",
        "each answered turn is a request of its own; its prompt is the whole conversation before the answer",
    ),
)
