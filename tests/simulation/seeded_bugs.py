"""Bugs that the simulation must catch: the six of the model-based tests, and seven more that take whole lives to show.

Each names the first seed that catches it, and what is said then; what is caught for another reason is not caught.
"""

from __future__ import annotations

from typing import NamedTuple

from tests.store.mutations import MUTATIONS, Mutation

__all__ = ["SEEDED_BUGS", "SeededBug"]


class SeededBug(NamedTuple):
    mutation: Mutation
    seed: int
    """The first seed that shows it, as the scripts are today."""
    found: str = ""
    """What the simulation says, where that differs from what the model says."""


_RECOVERING = ("sweep", "leave")

_SAID = {"release-without-fence": "which runs: False"}

OF_LIVES = (
    # The answer "parked" is lost; the call is repeated when the ticket has been granted, and takes the grant that the
    # parked message is on its way to pick up: two copies run, one after the other.
    Mutation(
        "repeated-call-takes-the-grant",
        ("admit",),
        (("if again and (old.kept == 'own' or old.sends > 0) then", "if false then"),),
        "runs again, though nothing had crashed|but Duplicate.. was due",
    ),
    # Nobody could beat, and so everybody is taken for dead.
    Mutation(
        "outage-taken-for-death",
        ("sweep",),
        (("if not in_grace() then", "if true then"),),
        "is declared dead, but nobody could have beaten",
    ),
    # A worker that was slow to settle takes out what another has claimed since.
    Mutation(
        "old-claim-settles",
        ("settle",),
        (("t.fence == ARGV[i + 1] and", ""),),
        "in the outbox|an old claim changed the store|is nowhere|have not ended|settle took",
    ),
    # The copy that the broker delivered while the first ran is dropped, and then the first one's worker dies.
    Mutation(
        "spare-dropped",
        ("admit",),
        (
            ("if old.kept == '' and t.message == '' then return { 'full', 1 } end", ""),
            ("if old.kept == '' then\n      call('HSET'", "if false then\n      call('HSET'"),
        ),
        "is nowhere|have not ended|Full",
    ),
    # Recovered from a dead worker, a ticket goes to the end of its line.
    Mutation(
        "recovered-at-the-end",
        _RECOVERING,
        (
            (
                "  t.kept = 'own'\n  if call('EXISTS', P .. 'cancelled:'",
                "  t.kept = 'own'\n  t.arrival = serial()\n  if call('EXISTS', P .. 'cancelled:'",
            ),
        ),
        "before|but (Admitted|Parked)|beside room",
    ),
    # A grant that its worker never asks for keeps its slots for ever.
    Mutation(
        "grant-never-times-out",
        ("sweep",),
        (("function ring.grant(id)", "function ring.grant_of(id)"),),
        "beyond its time|have not ended",
    ),
    # A dead worker is declared dead, but what it had is not given back.
    Mutation(
        "dead-are-not-buried",
        ("sweep",),
        (("function ring.bury(name)", "function ring.bury_of(name)"),),
        "are not buried|have not ended|left when all is quiet",
    ),
)

_CAUGHT_AT = {
    "check-then-claim": 0,
    "greater-or-equal-for-greater": 0,
    "one-more-than-the-limit": 0,
    "release-without-fence": 196,
    "wake-without-walk": 0,
    "park-without-atomic-check": 9,
    "repeated-call-takes-the-grant": 19,
    "outage-taken-for-death": 3,
    "old-claim-settles": 95,
    "spare-dropped": 10,
    "recovered-at-the-end": 197,
    "grant-never-times-out": 7,
    "dead-are-not-buried": 0,
}

SEEDED_BUGS = tuple(
    SeededBug(mutation, _CAUGHT_AT[mutation.name], _SAID.get(mutation.name, mutation.found))
    for mutation in (*MUTATIONS, *OF_LIVES)
)
