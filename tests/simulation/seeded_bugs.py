"""Bugs that the simulation must catch: the six of the model-based tests, eight more that take whole lives to show, ten
in how our own transport publishes, fetches, acknowledges and restores, and six in how a release hands over the next.

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
        (("if parked and (old.kept == 'own' or old.sends > 0) then", "if false then"),),
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
    # That copy is taken for acknowledged, though another broker may not have heard it, and delivers it once more.
    Mutation(
        "spare-forgotten",
        ("release",),
        ((" or (t.kept == 'spare' and t.queue == '')", ""),),
        "and another copy may come",
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
        "buried|have not ended|left when all is quiet",
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
        ("acknowledge", "fetch", "release"),
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

OF_HANDING_OVER = (
    # It runs, and nobody could restore its message.
    Mutation(
        "handed-not-recorded",
        ("release",),
        (("call('HSET', P .. 'unacked:' .. worker, t.delivery,", "local _ = string.len("),),
        "is nowhere|release lost a copy|recorded None",
    ),
    # What was in the queue before it, granted or not, starts after it.
    Mutation(
        "handed-past-the-queue",
        ("release",),
        (("or call('EXISTS', unpack(ahead)) > 0 then", "then"),),
        "was handed to .* behind|was handed over before",
    ),
    # A worker that was taken for dead is given more.
    Mutation(
        "handed-to-the-dead",
        ("release",),
        (("if ARGV[from] and call('ZSCORE', P .. 'worker:' .. worker, '!') then", "if ARGV[from] then"),),
        "was handed to .*leased=False|which is buried",
    ),
    # The answer was lost, its message goes back to the queue, and its slots stay with the worker that knows nothing.
    Mutation(
        "given-back-still-running",
        ("requeue",),
        (("if id ~= '' then not_begun(worker, field, id) end", ""),),
        "was handed over and given back, and is|no body does",
    ),
    # What a dead worker was handed over is remembered as if it had been acknowledged, though it comes again.
    Mutation(
        "handed-and-forgotten",
        _RECOVERING,
        (("t.late == '1' or call('HEXISTS', P .. 'unacked:' .. t.worker, t.delivery) == 1", "t.late == '1'"),),
        r"until \d+, not",
    ),
    # The release counts for nothing, but what came along with it is acknowledged.
    Mutation(
        "stale-but-acknowledged",
        ("release",),
        (
            (
                "~= mine then return { 'stale', '' } end",
                "~= mine then call('HDEL', P .. 'unacked:' .. worker, '', unpack(ARGV, 8)) return { 'stale', '' } end",
            ),
        ),
        "Stale.* changed the store",
    ),
)

_CAUGHT_AT = {
    "check-then-claim": 0,
    "greater-or-equal-for-greater": 0,
    "one-more-than-the-limit": 0,
    "release-without-fence": 407,
    "wake-without-walk": 0,
    "park-without-atomic-check": 0,
    "repeated-call-takes-the-grant": 41,
    "outage-taken-for-death": 3,
    "old-claim-settles": 111,
    "spare-dropped": 46,
    "spare-forgotten": 46,
    "recovered-at-the-end": 9,
    "grant-never-times-out": 10,
    "dead-are-not-buried": 1,
    "fetched-not-recorded": 0,
    "fetch-without-lease": 4,
    "death-restores-nothing": 1,
    "restored-at-the-end": 15,
    "dropped-grant-keeps-slots": 35,
    "parked-not-acknowledged": 1,
    "given-back-twice": 1,
    "published-past-the-room": 1,
    "published-without-arrival": 0,
    "sifted-and-lost": 1,
    "handed-not-recorded": 1,
    "handed-past-the-queue": 3,
    "handed-to-the-dead": 195,
    "given-back-still-running": 20,
    "handed-and-forgotten": 48,
    "stale-but-acknowledged": 46,
}

SEEDED_BUGS = tuple(
    SeededBug(mutation, _CAUGHT_AT[mutation.name], _SAID.get(mutation.name, mutation.found))
    for mutation in (*MUTATIONS, *OF_LIVES, *OF_DELIVERY, *OF_HANDING_OVER)
)
