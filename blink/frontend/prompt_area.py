"""Space for prompts in the ring's prompt area."""

from __future__ import annotations

from collections import deque


class PromptArea:
    """A circular allocator of token ranges: neighbours in a burst lie side by side, so one WRITE carries them all.

    Ranges are freed in any order; space comes back once the oldest range is free. A range never wraps: the tail of the
    area is skipped where it is too short. Units are tokens.
    """

    def __init__(self, capacity_tokens: int) -> None:
        self.capacity_tokens = capacity_tokens
        self._order: deque[int] = deque()  # start offsets, oldest first
        self._length: dict[int, int] = {}
        self._freed: set[int] = set()
        self._head = 0
        self._unknown_count = 0

    def allocate(self, tokens: int) -> int | None:
        """The offset of a free range of `tokens`, None if there is no room now.

        Raises ValueError for a range that the area can never hold.
        """
        if not 0 < tokens <= self.capacity_tokens:
            raise ValueError(f"a prompt of {tokens} tokens cannot be stored: 1 to {self.capacity_tokens} tokens fit")
        if self._unknown_count:
            return None
        if not self._order:
            self._head = 0
            offset = 0
        else:
            oldest = self._order[0]
            if self._head > oldest:
                if self._head + tokens <= self.capacity_tokens:
                    offset = self._head
                elif tokens < oldest:
                    offset = 0
                else:
                    return None
            elif self._head + tokens < oldest:
                offset = self._head
            else:
                return None
        self._head = offset + tokens
        self._order.append(offset)
        self._length[offset] = tokens
        return offset

    def occupy(self, offset: int, tokens: int) -> None:
        """Take a range that is in use already: after a restart, before the first `allocate`, by ascending offsets.

        Raises ValueError if it overlaps the one before or lies outside.
        """
        if not self._head <= offset < offset + tokens <= self.capacity_tokens:
            raise ValueError(f"tokens {offset}..{offset + tokens - 1} of the prompt area cannot be occupied")
        self._head = offset + tokens
        self._order.append(offset)
        self._length[offset] = tokens

    def occupy_somewhere(self) -> None:
        """A range is in use and nobody knows which: nothing is allocated until `free_somewhere`."""
        self._unknown_count += 1

    def free_somewhere(self) -> None:
        """Give back a range that nobody knows. Raises ValueError if there is none."""
        if not self._unknown_count:
            raise ValueError("no range of the prompt area is in use without being known")
        self._unknown_count -= 1

    def free(self, offset: int) -> None:
        """Give a range back. Raises ValueError if it is not allocated."""
        if offset not in self._length or offset in self._freed:
            raise ValueError(f"no prompt is stored at token {offset}")
        self._freed.add(offset)
        while self._order and self._order[0] in self._freed:
            start = self._order.popleft()
            self._freed.discard(start)
            del self._length[start]
