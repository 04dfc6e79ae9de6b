"""The mutants: one switch of the model each, named for the wrong belief that it stands for."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class Error:
    """The wrong belief, where in the model it bites, and why an invariant catches it (or why none can)."""

    belief: str
    bites: str
    why: str


class Mutant(Enum):
    """Every mutant that the specification names, in its order."""

    FLAG_BEFORE_PAYLOAD = Error(
        "The order in which I post my own WRITEs does not matter.",
        "frontend.submit posts the control word before prompt and descriptor",
        "the prompt lands in a slot that the control word has already given to the gpu",
    )
    RELAXED_WRITE_ORDER = Error(
        "WRITEs arrive in the order in which I post them, whatever the connection promises.",
        "wire.land takes any element of the FIFO",
        "the control word lands first, then the prompt in a slot of the gpu",
    )
    COUNT_PUBLISHED_BEFORE_TOKEN = Error(
        "The two stores are so close together that their order cannot matter.",
        "gpu.publish comes before gpu.store_token",
        "the last count gives the slot to the frontend, then the token is stored into an area that is not the gpu's",
    )
    COUNT_IN_A_SECOND_WORD = Error(
        "One READ shows both words of a slot as they were at one moment.",
        "wire.capture takes state and count at two moments",
        "a torn READ shows the completion with the count before it, and the last token is never fetched",
    )
    NO_GENERATION_CHECK = Error(
        "A word that I read now is about the request that I submitted last.",
        "frontend.deliver does not compare generations",
        "the completion of the last request is taken for news of the next, which gets tokens that are not its own",
    )
    TRUST_AN_EMPTY_SEEN_ON_THE_WIRE = Error(
        "A slot that I read as empty is free.",
        "frontend.deliver puts such a slot on the free list",
        "a READ overtakes the submission: the slot is on the free list with a request on its way",
    )
    GENERATION_NOT_BUMPED = Error(
        "An empty slot is an empty slot, it needs no new generation.",
        "frontend.recycle writes the old generation",
        "the recycling lands with the generation that it ends",
    )
    RECYCLE_BEFORE_THE_READS_ARE_DONE = Error(
        "A WRITE that I post after a READ takes effect after it.",
        "frontend.recycle does not wait for the READ of the tokens",
        "recycling and the next submission overtake the READ, which then brings the next request's token",
    )
    CANCEL_THROUGH_CTL = Error(
        "The fastest way to end a request is to write its state.",
        "frontend.cancel posts a control word",
        "the frontend writes the control word of a slot that is the gpu's",
    )
    CLAIM_WITHOUT_CAS = Error(
        "What I saw a moment ago is still there, a store is enough.",
        "gpu.claim stores over whatever stands in memory now",
        "equivalent: between the look and the store the slot is the gpu's, so only the gpu may write its control word, "
        "and one thread of the one scheduler handles a slot: the compare-and-swap fails in no reachable state. It is "
        "the last line of defence where I1 is already broken",
    )
    CANCEL_WITHOUT_GENERATION = Error(
        "A cancel in the slot's word is meant for the request that is in the slot.",
        "gpu.cancel_visible takes any cancel word that is not empty",
        "equivalent: the cancel word lies in the 64 bytes of the descriptor, whose WRITE clears it, and every cancel "
        "of an older generation lands before that WRITE, on the same connection. The generation is what keeps a cancel "
        "harmless that comes late from an old connection: together with old-connection-left-alive this mutant "
        "breaks I8, which neither does alone",
    )
    CANCEL_IGNORED_WHILE_PAUSED = Error(
        "A paused request does nothing, so there is nothing to cancel.",
        "gpu.look passes over paused slots",
        "the slot is resumed after the look, and a decode graph is launched for it although its cancel was visible",
    )
    RELAUNCH_THAT_ADOPTS_NOTHING = Error(
        "The new instance starts with an empty batch.",
        "gpu.relaunch knows no slot",
        "a claimed slot is in nobody's batch, so it stays as it is for ever",
    )
    RESTART_THAT_FREES_EVERYTHING = Error(
        "I have just started, so nothing of mine is in the ring.",
        "frontend.deliver takes every slot as free after a restart",
        "a slot with the old frontend's request is on the free list",
    )
    OLD_CONNECTION_LEFT_ALIVE = Error(
        "The old frontend is dead, so nothing of it can arrive any more.",
        "frontend.restart leaves the old FIFO on the wire",
        "the old submission lands in a slot that was read as empty and is on the new free list",
    )
    NO_EPOCH_FENCE = Error(
        "A request of the old frontend may as well run to its end.",
        "gpu.look and gpu.claim pass over the epoch",
        "a graph is launched for a slot of an epoch that was seen to be gone",
    )
    NO_CAPACITY_GUARD = Error(
        "The model ends its text in time.",
        "gpu.publish goes on beyond the limit",
        "the count passes the limit of the request",
    )
    NEVER_RESUME = Error(
        "A paused request is somebody else's to wake.",
        "gpu.resume never happens",
        "a paused slot stays paused for ever",
    )

    @property
    def label(self) -> str:
        """The name on the command line: words with hyphens."""
        return self.name.lower().replace("_", "-")

    @property
    def switch(self) -> str:
        """The field of Rules that turns it on."""
        return self.name.lower()


MUTANT_BY_LABEL: dict[str, Mutant] = {mutant.label: mutant for mutant in Mutant}

EQUIVALENT: frozenset[Mutant] = frozenset({Mutant.CLAIM_WITHOUT_CAS, Mutant.CANCEL_WITHOUT_GENERATION})
"""Mutants that no search can tell from the protocol; their `why` is the reason."""
