"""Bugs that the simulation must catch: the six of the model-based tests, ten more that take whole lives to show, ten
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

_SAID = {
    "release-without-fence": "which runs: False",
    "park-without-atomic-check": r"but (Admitted|Parked|Full)\(.*was due|beside room",
}

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
    # The server's clock is set back, and time stands still until it has caught up with what it was.
    Mutation(
        "clock-stands-still",
        ("beat", "sweep"),
        ((" .. whole(ahead))", " .. '0')"),),
        "sweep answered .* was due|until .* not|tokens paid until",
    ),
    # Tasks that take their keys crosswise wait for each other, and nobody gives way.
    Mutation(
        "knots-stay",
        ("sweep",),
        (("  knot.restart(victims)\n", ""), ("    untied[#untied + 1] = { t.id, key_at(t), names }\n", "")),
        "have not ended",
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
        (("function ring.reclaim(name)", "function ring.reclaim_of(name)"),),
        "buried|have not ended|left when all is quiet",
    ),
)

OF_DELIVERY = (
    # kombu's way: what was popped is recorded in a second step, which a killed worker never comes to.
    Mutation(
        "fetched-not-recorded",
        ("fetch",),
        (("if kept[1] then call('ZADD', P .. 'unacked:' .. worker, unpack(kept)) end", ""),),
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
        (("return requeue_all(worker) end", "return true end"),),
        "stays with them|have not ended",
    ),
    # It is restored, but behind all others.
    Mutation(
        "restored-at-the-end",
        _RECOVERING,
        (("requeue_one(worker, 'RPUSH', field", "requeue_one(worker, 'LPUSH', field"),),
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
        (("if field ~= '' then remove_delivery(worker, field) end", ""),),
        "admit made 2 copies",
    ),
    # What is given back stays with the worker, too.
    Mutation(
        "given-back-twice",
        ("requeue", "sweep", "leave"),
        (
            (
                "call(push, list, redelivered(text))\n  remove_delivery(worker, field)",
                "call(push, list, redelivered(text))",
            ),
        ),
        r"made \d+ copies",
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
        (("if not seal then return text end", "if seal then return text end"),),
        "arrives as|does not say that it arrived",
    ),
    # What should wait is taken out of its queue, whether it stands in line now or not.
    Mutation(
        "sifted-and-lost",
        ("fetch",),
        (
            (
                "return park_early(t, text, claim_in(header, at))",
                "return park_early(t, text, claim_in(header, at)) or true",
            ),
        ),
        "is nowhere|fetch lost a copy",
    ),
)

OF_HANDING_OVER = (
    # It runs, and nobody could restore its message.
    Mutation(
        "handed-not-recorded",
        ("release",),
        (("record_delivery(worker, t.delivery,", "local _ = string.len("),),
        "is nowhere|release lost a copy|recorded None",
    ),
    # What was in the queue before it, granted or not, starts after it.
    Mutation(
        "handed-past-the-queue",
        ("release",),
        (("or call('EXISTS', unpack(ahead)) > 0 then", "then"),),
        "was handed to .* behind|was handed over before",
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
        (("t.late == '1' or (string", "t.late == '1' or (false and string"),),
        r"until \d+, not",
    ),
    # The release counts for nothing, but what came along with it is acknowledged.
    Mutation(
        "stale-but-acknowledged",
        ("release",),
        (
            (
                "~= mine then return { 'stale', '' } end",
                "~= mine then remove_deliveries(worker, (read_acked(8, tonumber(ARGV[7])))) return { 'stale', '' } end",
            ),
        ),
        "Stale.* changed the store",
    ),
)

_CAUGHT_AT = {
    "check-then-claim": 0,
    "greater-or-equal-for-greater": 0,
    "one-more-than-the-limit": 0,
    "release-without-fence": 34,
    "wake-without-walk": 0,
    "park-without-atomic-check": 0,
    "repeated-call-takes-the-grant": 330,
    "outage-taken-for-death": 14,
    "clock-stands-still": 14,
    "knots-stay": 87,
    "old-claim-settles": 833,
    "spare-dropped": 3,
    "spare-forgotten": 3,
    "recovered-at-the-end": 21,
    "grant-never-times-out": 0,
    "dead-are-not-buried": 0,
    "fetched-not-recorded": 0,
    "fetch-without-lease": 0,
    "death-restores-nothing": 1,
    "restored-at-the-end": 128,
    "dropped-grant-keeps-slots": 21,
    "parked-not-acknowledged": 0,
    "given-back-twice": 0,
    "published-past-the-room": 0,
    "published-without-arrival": 0,
    "sifted-and-lost": 1,
    "handed-not-recorded": 0,
    "handed-past-the-queue": 9,
    "given-back-still-running": 3,
    "handed-and-forgotten": 11,
    "stale-but-acknowledged": 42,
}

SEEDED_BUGS = tuple(
    SeededBug(mutation, _CAUGHT_AT[mutation.name], _SAID.get(mutation.name, mutation.found))
    for mutation in (*MUTATIONS, *OF_LIVES, *OF_DELIVERY, *OF_HANDING_OVER)
)
