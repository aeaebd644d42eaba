"""Bugs that the simulation must catch: the six of the model-based tests, seven more that take whole lives to show, and
ten in how our own transport publishes, fetches, acknowledges and restores.

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
        "had the place",
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

OF_DELIVERY = (
    # kombu's way: what was popped is recorded in a second step, which a killed worker never comes to.
    Mutation(
        "fetched-not-recorded",
        ("fetch",),
        (("if kept[1] then call('HSET', unacked, unpack(kept)) end", ""),),
        "is nowhere|fetch lost a copy",
    ),
    # A worker that was taken for dead goes on fetching, and nobody will ever restore what it gets.
    Mutation(
        "fetch-without-lease",
        ("fetch",),
        (("local holds = worker == '' or call('ZSCORE', P .. 'worker:' .. worker, '!')", "local holds = true"),),
        "stays with them|for Worker",
    ),
    # What a dead worker had not acknowledged is forgotten with it.
    Mutation(
        "death-restores-nothing",
        _RECOVERING,
        (("return give_back_all(worker, batch)", "return true"),),
        "stays with them|have not ended",
    ),
    # It is restored, but behind all others.
    Mutation(
        "restored-at-the-end",
        _RECOVERING,
        (("give_back(worker, fields, 'RPUSH')", "give_back(worker, fields, 'LPUSH')"),),
        "is not at the front",
    ),
    # A granted message is dropped before it was admitted, and its slots stay taken.
    Mutation(
        "dropped-grant-keeps-slots",
        ("acknowledge", "fetch"),
        (("if t and t.kept == '' and (t.state == 'granted'", "if t and t.kept == '?' and (t.state == 'granted'"),),
        "was dropped, and is",
    ),
    # What is parked is still delivered: two copies, of which one comes back when the worker dies.
    Mutation(
        "parked-not-acknowledged",
        ("admit",),
        (("if field ~= '' then call('HDEL', unacked, field) end", ""),),
        "admit made 2 copies",
    ),
    # What is given back stays with the worker, too.
    Mutation(
        "given-back-twice",
        ("requeue", "sweep", "leave"),
        (
            (
                "call(push, list, redelivered(text))\n      call('HDEL', hash, field)",
                "call(push, list, redelivered(text))",
            ),
        ),
        "made 2 copies",
    ),
    # A message is put into the line although there is room, and nobody will wake it.
    Mutation(
        "published-past-the-room",
        ("publish",),
        (("survey(t) > 1 or full(t, 1)", "survey(t) < 1 or full(t, 1)"),),
        "in line: True, but False",
    ),
    # The place in line is given at the gate again: who was published first may have to wait for who came later.
    Mutation(
        "published-without-arrival",
        ("publish",),
        (("if not from then return text end", "if from then return text end"),),
        "arrives as|does not say that it arrived",
    ),
    # What should wait is taken out of its queue, whether it stands in line now or not.
    Mutation(
        "sifted-and-lost",
        ("fetch",),
        (("return t and stand(t, text)", "return t and (stand(t, text) or true)"),),
        "is nowhere|fetch lost a copy",
    ),
)

_CAUGHT_AT = {
    "check-then-claim": 1,
    "greater-or-equal-for-greater": 0,
    "one-more-than-the-limit": 0,
    "release-without-fence": 337,
    "wake-without-walk": 0,
    "park-without-atomic-check": 11,
    "repeated-call-takes-the-grant": 159,
    "outage-taken-for-death": 0,
    "old-claim-settles": 154,
    "spare-dropped": 3,
    "recovered-at-the-end": 33,
    "grant-never-times-out": 2,
    "dead-are-not-buried": 4,
    "fetched-not-recorded": 0,
    "fetch-without-lease": 20,
    "death-restores-nothing": 7,
    "restored-at-the-end": 210,
    "dropped-grant-keeps-slots": 3,
    "parked-not-acknowledged": 0,
    "given-back-twice": 0,
    "published-past-the-room": 0,
    "published-without-arrival": 0,
    "sifted-and-lost": 20,
}

SEEDED_BUGS = tuple(
    SeededBug(mutation, _CAUGHT_AT[mutation.name], _SAID.get(mutation.name, mutation.found))
    for mutation in (*MUTATIONS, *OF_LIVES, *OF_DELIVERY)
)
