"""The 13 guarantees of docs/guarantees.md, as far as the store gives them: at least one test each, named after it.

Scenarios and single verbs are tested elsewhere; here are the cases that only a guarantee names.
"""

from __future__ import annotations

import json

import pytest

from celery_limits.declare.chain import Link
from celery_limits.errors import LimitError
from celery_limits.store import Store
from celery_limits.store.audit import audit
from celery_limits.store.keys import BELLS
from celery_limits.store.outcomes import Admitted, Corrupt, Parked, Released, Stale
from tests.store.actors import (
    ANY,
    Clock,
    Worker,
    c,
    f,
    field_of,
    holders,
    leftovers,
    line_at,
    live_on,
    names_in,
    queued_in,
    r,
    raw_client,
    ready_in,
    settle,
    used,
    wind_up,
)
from tests.store.interleaving import Choices, Stage, every_way

A, B = c("a", 1), c("b", 1)


@pytest.mark.parametrize("limit", [0, 1, 2, 5])
def test_g1_never_over_through_kills_and_redelivery(store: Store, clock: Clock, limit: int) -> None:
    key, survivor = c("k", limit), Worker(store, "survivor")
    for round_ in range(5):
        mortal = Worker(store, f"mortal{round_}")
        for i in range(8):  # the broker hands everything out again, every time
            mortal.deliver(f"t{i}.n", key, late=True)
        mortal.pick_up(ANY, late=True)
        assert len(mortal.running) <= limit
        assert used(store, "k") <= limit
        live_on(clock, store.policy.lease + 3, survivor)
        assert used(store, "k") <= limit
    store.resize("k", 8)
    wind_up(clock, survivor)
    store.reset("k")


def test_g1_never_over_with_weights(store: Store, clock: Clock) -> None:
    w = Worker(store)
    for i, weight in enumerate((3, 2, 2, 1, 5, 1)):
        w.deliver(f"t{i}.n", c("k", 5, weight=weight))
    while w.running:
        assert used(store, "k") <= 5
        w.finish(next(iter(w.running)))
        w.pick_up(ANY)
    wind_up(clock, w)


def test_g2_exactly_full_as_bodies_come_and_go(store: Store, clock: Clock) -> None:
    w, key = Worker(store), c("k", 3)
    for i in range(30):
        w.deliver(f"t{i}.n", key)
    for _ in range(27):
        assert len(w.running) == used(store, "k") == 3
        w.finish(next(iter(w.running)))
        assert len(w.pick_up(ANY)) == 1
    wind_up(clock, w)


@pytest.mark.parametrize("how", ["cancelled", "expired"])
def test_g3_no_lost_wake_up_when_a_heavy_head_leaves_the_line(store: Store, clock: Clock, how: str) -> None:
    w = Worker(store)
    w.deliver("one.n", c("k", 3))
    w.deliver("two.n", c("k", 3))
    w.deliver("heavy.n", c("k", 3, weight=3), expires=clock.now + 2_000_000)
    w.deliver("light.n", c("k", 3, weight=2))
    w.finish("one.n")
    assert line_at(store, "k") == ["heavy.n", "light.n"], "there would be room for the second, but it is in turn"
    if how == "cancelled":
        settle(store, store.cancel("heavy").ended)
    else:
        live_on(clock, 3, w)
    assert ready_in(store) == ["light.n"]
    wind_up(clock, w)


def test_g3_no_lost_wake_up_when_a_costly_head_leaves_a_rate(store: Store, clock: Clock) -> None:
    w, cheap, dear = Worker(store), r("api", "1/s", burst=10), r("api", "1/s", burst=10, cost=10)
    w.deliver("spender.n", dear)
    w.deliver("dear.n", dear)
    w.deliver("cheap.n", cheap)
    settle(store, store.cancel("dear").ended)
    live_on(clock, 2, w)
    assert ready_in(store) == ["cheap.n"], "due after a second, not when the other would have been"
    wind_up(clock, w)


def test_g3_no_lost_wake_up_when_a_waiter_moves_on_and_is_parked_again(store: Store, clock: Clock) -> None:
    """The head of a's line takes its slot of a and waits at b: those behind it must be looked at too."""
    w, two = Worker(store), c("a", 2)
    w.deliver("in-b.n", B)
    w.deliver("a1.n", two)
    w.deliver("a2.n", two)
    w.deliver("both.n", two, B)
    w.deliver("a3.n", two)
    store.resize("a", 4)
    assert holders(store, "a") == {"a1.n", "a2.n", "both.n", "a3.n"}
    assert ready_in(store) == ["a3.n"]
    store.reset("a")
    wind_up(clock, w)


def test_g3_no_lost_wake_up_of_a_chain_of_wakers(store: Store, clock: Clock) -> None:
    """One release lets a first one go on, whose end in the store (discarded at b) lets another go on."""
    w = Worker(store)
    w.deliver("in-b.n", B)
    w.deliver("in-a.n", A)
    w.deliver("picky.n", A, c("b", 1, on_full="discard"))
    w.deliver("next.n", A)
    w.finish("in-a.n")
    assert ready_in(store) == ["next.n"]
    assert field_of(store, "picky.n", "reason") == "discarded"
    assert audit(store) == []
    wind_up(clock, w)


def test_g4_released_once_and_a_stale_release_wakes_nobody(store: Store, clock: Clock) -> None:
    w = Worker(store)
    w.deliver("t1.n", A)
    w.deliver("t2.n", A)
    fence = w.running["t1.n"]
    for worker, number in ((w.name, fence + 1), (w.name, 0), ("other", fence)):
        assert isinstance(store.release("t1.n", worker, number), Stale)
        assert holders(store, "a") == {"t1.n"}
    assert isinstance(w.finish("t1.n"), Released)
    assert isinstance(store.release("t1.n", w.name, fence), Stale)
    assert holders(store, "a") == {"t2.n"}
    wind_up(clock, w)


def test_g4_every_admission_has_a_larger_fence(store: Store, clock: Clock) -> None:
    w, fences = Worker(store), []
    for i in range(3):
        w.deliver(f"t{i}.n", A)
        fences.append(w.running[f"t{i}.n"])
        w.finish(f"t{i}.n", back=True)
        w.deliver(f"t{i}.n", A)
        fences.append(w.running[f"t{i}.n"])
        w.finish(f"t{i}.n")
    assert fences == sorted(set(fences))
    wind_up(clock, w)


def test_g5_nothing_lost_between_claim_publish_and_settle(store: Store, clock: Clock) -> None:
    """The message of a granted ticket, at every crash point of the worker that publishes it."""

    def scene(choices: Choices) -> None:
        raw_client(store).flushall()
        w, broker = Worker(store, queue=""), list[str]()
        w.deliver("first.n", A)
        w.deliver("t.n", A)
        w.finish("first.n")

        def publisher(gated: Store) -> None:
            for entry in gated.claim(settle_within=30):
                broker.append(entry.ticket)
                settle(gated, [entry])

        with Stage(store, publisher=publisher) as stage:
            stage.play_until_crash(choices, "publisher")
        ran = []
        for _ in range(3):  # another worker works off the outbox, the broker delivers, perhaps twice
            live_on(clock, 12, w)
            broker += [entry.ticket for entry in store.claim()]
            while broker:
                outcome = w.deliver(broker.pop(), A)
                if isinstance(outcome, Admitted):
                    ran.append(w.finish("t.n"))
        assert len(ran) == 1
        assert audit(store) == []
        wind_up(clock, w)

    assert every_way(scene) == 5


def test_g5_nothing_lost_when_a_late_settle_meets_a_second_grant(store: Store, clock: Clock) -> None:
    """1 claim 2 publish 3 delivered and parked again 4 granted again 5 the settle of the first publication arrives."""
    w = Worker(store, queue="")
    w.deliver("first.n", A)
    w.deliver("t.n", A)
    w.finish("first.n")
    live_on(clock, store.policy.grant_timeout + 3, w)  # nobody published it in time: its slot goes to another
    w.deliver("other.n", A)
    (claimed,) = store.claim()
    assert isinstance(w.deliver(claimed.ticket, A), Parked)
    w.finish("other.n")
    settle(store, [claimed])
    live_on(clock, 31, w)
    assert [entry.ticket for entry in store.claim()] == ["t.n"], "the second grant has not been published"
    w.deliver("t.n", A)
    wind_up(clock, w)


@pytest.mark.parametrize("state", ["granted", "away"])
@pytest.mark.parametrize("dies", [True, False])
def test_g5_nothing_lost_when_the_answer_to_a_fetch_is(store: Store, clock: Clock, state: str, dies: bool) -> None:
    """Its worker lives on, and gives back what it knows nothing of; or it dies, and others do."""
    w1, w2 = Worker(store, "w1"), Worker(store, "w2")
    w1.deliver("first.n", A)
    w1.deliver("t.n", A)
    w1.finish("first.n")
    if state == "away":
        live_on(clock, store.policy.grant_timeout + 3, w1, w2)
    assert field_of(store, "t.n", "state") == state
    w1.post.fetch("w1", 1)  # the answer never arrives
    live_on(clock, 3 * store.policy.grant_timeout, *([w2] if dies else [w1, w2]))
    if not dies:
        w1.post.requeue("w1", w1.post.fetched_by("w1"), "front")
    assert w2.pick_up(ANY) == ["t.n"]
    wind_up(clock, *([w2] if dies else [w2, w1]))


def test_g5_nothing_lost_when_a_worker_dies_while_it_leaves(store: Store, clock: Clock) -> None:
    w1, w2 = Worker(store, "w1"), Worker(store, "w2")
    for i in range(150):
        w1.deliver(f"t{i}.n", c("k", 150), late=True)
    assert store.leave("w1").more
    live_on(clock, 3 * store.policy.lease, w2)  # it never called again
    assert holders(store, "k") == set()
    wind_up(clock, w2)


@pytest.mark.parametrize("token_left", [True, False])
def test_g6_waiting_costs_nothing_no_second_token(store: Store, clock: Clock, token_left: bool) -> None:
    """Through a rate and parked behind it: resumed, taken back, redelivered, it pays once, tokens or not."""
    w, rate = Worker(store), r("api", "1/m", burst=2)
    w.deliver("in-a.n", A)
    w.deliver("t.n", rate, A)
    w.finish("in-a.n")
    if not token_left:
        w.deliver("other.n", rate)
    live_on(clock, store.policy.grant_timeout + 3, w)
    assert field_of(store, "t.n", "state") == "away"
    assert w.pick_up(ANY) == ["t.n"]
    w.finish("t.n", back=True)
    assert isinstance(w.deliver("t.n", rate, A), Admitted)
    if token_left:
        assert isinstance(w.deliver("other.n", rate), Admitted)
    wind_up(clock, w)


def test_g6_waiting_costs_nothing_the_message_is_byte_for_byte_the_same(store: Store, clock: Clock) -> None:
    message = json.dumps({"body": "x" * 1000, "n": 10**30, "é": [], "n2": 1.10}).encode() + b"\x00\xff"
    w = Worker(store)
    w.deliver("first.n", A)
    w.deliver("t.n", A, message=message)
    w.finish("first.n")
    assert w.fetch() == [("t.n", message)]
    w.deliver("t.n", A)
    wind_up(clock, w)


def test_g7_no_cross_blocking_within_one_chain_of_shared_keys(store: Store, clock: Clock) -> None:
    """Both stand behind the same worker and queue; only the key decides."""
    w = Worker(store)
    w.deliver("holder.n", c("tenant:1", 1))
    for i in range(200):
        w.deliver(f"one{i}.n", c("tenant:1", 1))
    for i in range(5):
        assert isinstance(w.deliver(f"two{i}.n", c("tenant:2", 5)), Admitted)
    assert len(wind_up(clock, w)) == 200


def test_g8_in_turn_by_priority_then_arrival(store: Store, clock: Clock) -> None:
    w = Worker(store)
    w.deliver("holder.n", A)
    for ticket, rank in (("p5.n", 5), ("p9.n", 9), ("p0.n", 0), ("p5b.n", 5), ("p255.n", 255), ("p0b.n", 0)):
        w.deliver(ticket, A, rank=rank)
    assert wind_up(clock, w) == ["p0.n", "p0b.n", "p5.n", "p5b.n", "p9.n", "p255.n"]


def test_g8_in_turn_a_newcomer_does_not_pass_a_heavier_waiter(store: Store, clock: Clock) -> None:
    w, three = Worker(store), c("k", 3)
    w.deliver("runs.n", three)
    w.deliver("heavy.n", c("k", 3, weight=3))
    assert isinstance(w.deliver("newcomer.n", three), Parked)
    assert wind_up(clock, w) == ["heavy.n", "newcomer.n"]


def test_g8_in_turn_a_newcomer_does_not_take_the_token_that_has_just_come_due(store: Store, clock: Clock) -> None:
    w, rate = Worker(store), r("api", "1/s")
    w.deliver("spender.n", rate)
    w.deliver("waiter.n", rate)
    clock.pass_(1.5)  # and nobody has swept yet
    assert isinstance(w.deliver("newcomer.n", rate), Parked)
    assert wind_up(clock, w) == ["waiter.n", "newcomer.n"]


def test_g8_in_turn_a_newcomer_waits_while_a_large_resize_is_still_being_granted(store: Store, clock: Clock) -> None:
    w = Worker(store)
    for i in range(101):
        w.deliver(f"t{i}.n", A)
    assert store.resize("a", 200).more
    assert isinstance(w.deliver("newcomer.n", A), Parked)
    assert wind_up(clock, w) == [f"t{i}.n" for i in range(1, 101)] + ["newcomer.n"]
    store.reset("a")


def test_g8_in_turn_parked_at_a_later_link_keeps_the_arrival(store: Store, clock: Clock) -> None:
    w = Worker(store)
    w.deliver("in-a.n", A)
    w.deliver("in-b.n", B)
    w.deliver("elder.n", A, B)
    w.deliver("younger.n", B)
    w.finish("in-a.n")
    assert line_at(store, "b") == ["elder.n", "younger.n"]
    assert wind_up(clock, w) == ["elder.n", "younger.n"]


@pytest.mark.parametrize("gone", ["leaves", "dies"])
def test_g8_in_turn_what_a_gone_worker_had_fetched_goes_back_in_its_old_order(
    store: Store, clock: Clock, gone: str
) -> None:
    w1, w2, three = Worker(store, "w1"), Worker(store, "w2"), c("k", 3)
    for i in range(6):
        w1.deliver(f"t{i}.n", three)
    for i in range(3):
        w1.finish(f"t{i}.n")
    w2.fetch(3)
    if gone == "leaves":
        store.leave("w2")
    else:
        live_on(clock, store.policy.lease + 3, w1)
    assert queued_in(store) == ["t3.n", "t4.n", "t5.n"]
    wind_up(clock, w1)


def test_g10_no_silent_bypass_by_an_empty_chain(store: Store, clock: Clock) -> None:
    w = Worker(store)
    try:
        outcome: object = w.deliver("t.n")
    except (ValueError, LimitError):
        outcome = Corrupt("refused")
    assert isinstance(outcome, Corrupt)
    assert names_in(store, "task:*") == []
    wind_up(clock, w)


def test_g11_all_or_nothing_when_there_is_no_message_to_park(store: Store, clock: Clock) -> None:
    w, client = Worker(store), raw_client(store)
    w.deliver("in-b.n", B)
    before = {name: client.dump(store.prefix + name) for name in names_in(store, "*")}
    w.deliver("t.n", A, f("fl", 3), r("api", "1/s"), B, message=b"")
    assert {name: client.dump(store.prefix + name) for name in names_in(store, "*")} == before
    wind_up(clock, w)


def test_g12_deadlock_is_found_named_and_broken(store: Store, clock: Clock) -> None:
    w = Worker(store)
    w.deliver("in-a.n", A)
    w.deliver("in-b.n", B)
    w.deliver("ab.n", A, B)
    w.deliver("ba.n", B, A)
    w.finish("in-b.n")
    w.finish("in-a.n")
    (finding,) = audit(store)
    assert (finding.code, finding.subject) == ("deadlock", "ba.n")
    assert "ab.n waits at 'b'" in finding.message
    assert "ba.n waits at 'a'" in finding.message
    audit(store, repair=True)
    assert wind_up(clock, w) == ["ab.n", "ba.n"]


def test_g13_nothing_left_when_all_is_quiet(store: Store, clock: Clock) -> None:
    w = Worker(store)
    chains: tuple[tuple[Link, ...], ...] = ((A, B), (A, r("api", "5/s")), (c("k", 9, weight=9),), (r("api", "1/m"), B))
    for i, chain in enumerate(chains * 2):
        w.deliver(f"t{i}.n", *chain)
    wind_up(clock, w)
    clock.pass_(120)
    store.sweep()
    assert leftovers(store) == []
    kept = [name for name in names_in(store, "*") if not name.startswith(BELLS)]
    assert kept == ["clock", "config", "counts", "serial"]
