"""Tokens of which any sequence is text that becomes exactly these tokens again: what a stub engine may say.

Clients count tokens by tokenizing the text that they got. A model's own output need not survive that; a stub's can be
chosen so that it does.
"""

from __future__ import annotations

from blink.frontend.tokenizer.base import Tokenizer

PLAIN_MAX = 2048
_LETTERS = set("abcdefghijklmnopqrstuvwxyz")
_PROOF_TOKENS = 64


def plain_tokens(tokenizer: Tokenizer, most: int = PLAIN_MAX) -> list[int]:
    """At most `most` such tokens, in ascending order.

    Words of lower-case letters with a space before them are candidates: common tokenizers split text before a space,
    so that no merge reaches across. Where none are, single characters are. Each is tried alone and then in sequences of
    many; one that changes its neighbours is left out. Raises ValueError if nothing is left.
    """
    for wanted in (_is_word, _is_letter):
        found = []
        for token in range(tokenizer.vocabulary_size):
            text = tokenizer.decode([token])
            if wanted(text) and tokenizer.encode(text, add_special=False) == [token]:
                found.append(token)
                if len(found) == most:
                    break
        kept = _proven(tokenizer, found)
        if kept:
            return kept
    raise ValueError(f"tokenizer {tokenizer.name}: no token was found whose text becomes the same token again")


def _is_word(text: str) -> bool:
    return len(text) > 2 and text[0] == " " and set(text[1:]) <= _LETTERS


def _is_letter(text: str) -> bool:
    return len(text) == 1 and text in _LETTERS | {" "}


def _proven(tokenizer: Tokenizer, tokens: list[int]) -> list[int]:
    """Those that stay themselves in a row: each between two others, in both orders."""
    for step in (1, 7):
        for start in range(0, len(tokens), _PROOF_TOKENS):
            row = tokens[start : start + _PROOF_TOKENS][::step] + tokens[start : start + _PROOF_TOKENS][::-1]
            if tokenizer.encode(tokenizer.decode(row), add_special=False) != row:
                return []
    return tokens
