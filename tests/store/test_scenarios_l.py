"""Scenarios L1 to L16 of docs/scenarios.md, as far as the store decides them: L6 needs a worker."""

from __future__ import annotations

import random
from typing import Any

import pytest

from celery_limits.declare.chain import Link
from celery_limits.store import Store, StoreBroken
from celery_limits.store.audit import audit
from celery_limits.store.outcomes import Admitted, Cancelled, Failed, Parked, Refreshed, Revoked, Stale
from tests.store.actors import (
    ANY,
    HEAD,
    LINK,
    Clock,
    Worker,
    c,
    damage,
    f,
    field_of,
    holders,
    line_at,
    live_on,
    names_in,
    overwrite,
    r,
    raw_client,
    ready_in,
    record_of,
    settle,
    sweep_all,
    wind_up,
)
from tests.store.interleaving import Choices, Stage, every_way

A, B = c("a", 1), c("b", 1)


def test_l1_parks_at_the_full_link_and_holds_those_before_it(store: Store, clock: Clock) -> None:
    w = Worker(store)
    w.deliver("holder.n", B)
    parked = w.deliver("t.n", A, B)
    assert isinstance(parked, Parked)
    assert parked.link == 1
    assert holders(store, "a") == {"t.n"}
    assert line_at(store, "b") == ["t.n"]
    (story,) = store.explain("t").tickets
    assert (story.link, story.held) == (1, ("a",))
    assert ready_in(store) == []
    wind_up(clock, w)


def test_l2_resumes_through_the_next_link(store: Store, clock: Clock) -> None:
    w = Worker(store)
    w.deliver("in-a.n", A)
    w.deliver("in-b.n", B)
    w.deliver("t.n", A, B)

    w.finish("in-a.n")  # naive: the grant runs it at once and drops b
    assert ready_in(store) == []
    assert holders(store, "b") == {"in-b.n"}

    w.finish("in-b.n")
    assert w.pick_up(ANY) == ["t.n"]
    assert holders(store, "a") == holders(store, "b") == {"t.n"}
    w.finish("t.n")
    assert holders(store, "a") == holders(store, "b") == set()
    wind_up(clock, w)


def test_l3_meets_the_rate_limit_next_and_keeps_its_slots(store: Store, clock: Clock) -> None:
    w, rate = Worker(store), r("api", "1/m")
    w.deliver("spender.n", rate)
    w.deliver("in-b.n", B)
    w.deliver("t.n", A, B, rate)
    w.finish("in-b.n")
    assert ready_in(store) == []
    assert line_at(store, "api") == ["t.n"]
    assert holders(store, "a") == holders(store, "b") == {"t.n"}
    live_on(clock, 61, w)
    assert w.pick_up(ANY) == ["t.n"]
    wind_up(clock, w)


def test_l4_ten_refusals_by_a_rate_are_one_ticket_and_one_slot(store: Store, clock: Clock) -> None:
    w = Worker(store)
    w.deliver("t.n", c("a", 2), r("api", "1/m"))
    store.resize("api", "1/h")
    w.deliver("u.n", c("a", 2), r("api", "1/m"))
    for _ in range(10):  # each rings the alarm a little too early for the rate as it is by then
        store.resize("api", "0/s")
        store.resize("api", "1/h")
        assert line_at(store, "api") == ["u.n"]
        assert holders(store, "a") == {"t.n", "u.n"}
    assert names_in(store, "task:*") == ["task:t", "task:u"]
    store.reset("api")
    live_on(clock, 61, w)
    assert w.pick_up(ANY) == ["u.n"]
    w.finish("u.n")
    assert holders(store, "a") == {"t.n"}
    wind_up(clock, w)


def test_l5_a_walk_that_fails_at_link_3_of_4_leaves_no_trace(store: Store, clock: Clock) -> None:
    w, client = Worker(store), raw_client(store)
    client.set(f"{store.prefix}hold:c", "not a set")
    before = {name: client.dump(store.prefix + name) for name in names_in(store, "*")}
    with pytest.raises(StoreBroken):
        w.deliver("t.n", A, B, c("c", 1), c("d", 1))
    assert {name: client.dump(store.prefix + name) for name in names_in(store, "*")} == before
    client.delete(f"{store.prefix}hold:c")
    assert isinstance(w.deliver("t.n", A, B, c("c", 1), c("d", 1)), Admitted)
    wind_up(clock, w)


def test_l7_an_eta_due_while_the_key_is_full_is_one_waiter_in_turn(store: Store, clock: Clock) -> None:
    w = Worker(store)
    w.deliver("now.n", A)
    w.deliver("early.n", A)
    clock.pass_(3)  # the eta: until then the store has not heard of it
    w.deliver("eta.n", A)
    w.deliver("late.n", A)
    assert line_at(store, "a") == ["early.n", "eta.n", "late.n"]
    assert wind_up(clock, w) == ["early.n", "eta.n", "late.n"]


def _cancelled(outcome: Cancelled) -> list[str]:
    return [ended.ticket for ended in outcome.ended]


@pytest.mark.parametrize("where", ["waits at b", "waits at a rate", "granted", "on its way", "published"])
def test_l8_cancelling_frees_every_slot_and_starts_the_next(store: Store, clock: Clock, where: str) -> None:
    queue = "" if where in ("on its way", "published") else "q"
    w = Worker(store, queue=queue)
    last: Link = r("api", "1/h") if where == "waits at a rate" else B
    w.deliver("in-the-way.n", last)
    w.deliver("t.n", A, last)
    w.deliver("next.n", A)
    assert holders(store, "a") == {"t.n"}
    if where not in ("waits at b", "waits at a rate"):
        w.finish("in-the-way.n")
    if where in ("on its way", "published"):
        assert [entry.ticket for entry in store.claim()] == ["t.n"]
    if where == "published":
        settle(store, ["t.n"])

    cancelled = store.cancel("t")
    assert holders(store, "a") == {"next.n"}
    assert "t.n" not in holders(store, "b")
    assert _cancelled(cancelled) == ([] if where == "published" else ["t.n"])
    assert isinstance(w.deliver("t.n", A, last), Revoked) or where != "published"
    settle(store, _cancelled(cancelled))
    assert isinstance(w.deliver("t.n", A, last), Revoked)
    assert "t.n" not in wind_up(clock, w)


def test_l9_cancelled_waiters_are_passed_over(store: Store, clock: Clock) -> None:
    w = Worker(store)
    for name in ("j1", "j2", "j3", "j4"):
        w.deliver(f"{name}.n", A)
    for name in ("j2", "j3"):
        settle(store, _cancelled(store.cancel(name)))
    assert line_at(store, "a") == ["j4.n"]
    w.finish("j1.n")
    assert w.pick_up(ANY) == ["j4.n"]
    wind_up(clock, w)


_EMPTY_CHAIN = len(HEAD)


@pytest.mark.leaves_traces
@pytest.mark.parametrize("how", ["empty chain", "unknown kind", "undecodable"])
def test_l10_a_bad_record_is_set_aside_with_its_message_and_the_valid_one_runs(
    store: Store, clock: Clock, how: str
) -> None:
    w = Worker(store)
    for name in ("first", "bad", "good"):
        w.deliver(f"{name}.n", A)
    if how == "empty chain":
        overwrite(store, "bad.n", b"\t".join([*record_of(store, "bad.n")[:_EMPTY_CHAIN], b""]))
    elif how == "unknown kind":
        damage(store, "bad.n", len(HEAD) + LINK.index("kind"), b"x")
    else:
        overwrite(store, "bad.n", b"\x80\xff\x00 not a record")
    w.finish("first.n")
    assert w.pick_up(ANY) == ["good.n"]
    aside = raw_client(store).hgetall(f"{store.prefix}aside")
    assert list(aside) == [b"bad.n"]
    assert b"message of bad.n" in aside[b"bad.n"]
    assert wind_up(clock, w) == []


def test_l11_the_waiter_gets_the_slot_not_the_newcomer(store: Store, clock: Clock) -> None:
    def scene(choices: Choices) -> None:
        raw_client(store).flushall()
        w1, w2 = Worker(store, "w1"), Worker(store, "w2")
        w1.deliver("holder.n", A)
        w1.deliver("waiter.n", A)

        def newcomer(gated: Store) -> None:
            outcome = gated.admit("newcomer.n", (A,), "w2", delivery="d", message=b"m", queue="q")
            assert isinstance(outcome, Parked)

        def holder(gated: Store) -> None:
            gated.release("holder.n", "w1", w1.running.pop("holder.n"))

        with Stage(store, holder=holder, newcomer=newcomer) as stage:
            stage.play(choices)
        assert holders(store, "a") == {"waiter.n"}
        assert wind_up(clock, w2, w1) == ["waiter.n", "newcomer.n"]

    assert every_way(scene) == 2


def test_l12_k_completions_at_once_start_k_distinct_waiters(store: Store, clock: Clock) -> None:
    w, five = Worker(store), c("five", 5)
    first, second = [f"t{i}.n" for i in range(5)], [f"t{i}.n" for i in range(5, 10)]
    for ticket in [*first, *second]:
        w.deliver(ticket, five)
    for ticket in first:
        w.finish(ticket)
    assert holders(store, "five") == set(second)
    assert w.pick_up(ANY) == second
    wind_up(clock, w)


def test_l13_a_raised_limit_starts_waiters_a_lowered_one_evicts_nobody(store: Store, clock: Clock) -> None:
    w = Worker(store)
    for i in range(6):
        w.deliver(f"t{i}.n", A)
    store.resize("a", 3)
    assert w.pick_up(ANY) == ["t1.n", "t2.n"]
    store.resize("a", 1)
    assert holders(store, "a") == {"t0.n", "t1.n", "t2.n"}
    for ticket in ("t0.n", "t1.n"):
        w.finish(ticket)
    assert ready_in(store) == []
    w.finish("t2.n")
    assert w.pick_up(ANY) == ["t3.n"]
    store.resize("a", 0)
    w.finish("t3.n")
    assert ready_in(store) == []
    assert isinstance(w.deliver("newcomer.n", A), Parked)
    store.reset("a")
    assert wind_up(clock, w) == ["t4.n", "t5.n", "newcomer.n"]


def test_l14_one_refresh_at_a_time_failures_back_off_and_success_resets(store: Store, clock: Clock) -> None:
    w1, w2, floating = Worker(store, "w1"), Worker(store, "w2"), f("fl", 1, every=2.0)
    admitted = w1.deliver("t1.n", floating)
    assert isinstance(admitted, Admitted)
    (refresh,) = admitted.after.refreshes
    parked = w2.deliver("t2.n", floating)
    assert isinstance(parked, Parked)
    assert parked.after.refreshes == ()
    assert store.sweep("w2").after.refreshes == ()

    for times, wait in enumerate((2, 4, 8), start=1):
        assert isinstance(store.refreshed("fl", "w2", refresh.token, None), Stale), "only who was asked may answer"
        failed = store.refreshed("fl", refresh_worker := "w1", refresh.token, None)
        assert isinstance(failed, Failed)
        assert failed.times == times
        live_on(clock, wait - 0.1, w1, w2)
        assert store.sweep("w1").after.refreshes == ()
        clock.pass_(0.2)
        (refresh,) = store.sweep(refresh_worker).after.refreshes
        assert store.sweep("w2").after.refreshes == ()
    assert isinstance(store.refreshed("fl", "w1", refresh.token, 2), Refreshed)
    assert w1.pick_up(ANY) == ["t2.n"], "the new size starts a waiter by itself"
    w2.deliver("t3.n", floating)
    clock.pass_(2.1)
    (refresh,) = store.sweep("w1").after.refreshes
    failed = store.refreshed("fl", "w1", refresh.token, None)
    assert isinstance(failed, Failed)
    assert failed.times == 1, "the success before it starts the count anew"
    wind_up(clock, w1, w2)


@pytest.mark.parametrize("how", ["dies", "leaves", "takes too long"])
def test_l14_another_refreshes_when_the_one_who_was_asked_does_not(store: Store, clock: Clock, how: str) -> None:
    w1, w2, floating = Worker(store, "w1"), Worker(store, "w2"), f("fl", 1)
    w1.deliver("t1.n", floating)
    w2.deliver("t2.n", floating)
    w2.deliver("t3.n", floating)
    if how == "leaves":
        w1.finish("t1.n")
        store.leave("w1")
    elif how == "dies":
        assert live_on(clock, 12, w2) == ["w1"]
    else:
        live_on(clock, 21, w1, w2)
    clock.pass_(1.1)  # sweeps by those who can't refresh have put the question off by a second
    (refresh,) = store.sweep("w2").after.refreshes
    assert isinstance(store.refreshed("fl", "w2", refresh.token, 3), Refreshed)
    assert store.status("fl").floating == 3
    wind_up(clock, w2, w1)


def _mixed_round(store: Store, clock: Clock, dice: random.Random, w: Worker, number: int) -> None:
    chain: tuple[Link, ...] = (c("a", 2), c(f"tenant{number % 3}", 1), r("api", "20/s", burst=3))
    ticket = f"t{number}.n"
    more: dict[str, Any] = {"late": dice.random() < 0.5, "rank": dice.choice([0, 0, 3])}
    if dice.random() < 0.2:
        more["expires"] = clock.now + dice.randrange(1, 2_000_000)
    if dice.random() < 0.1:
        settle(store, _cancelled(store.cancel(f"t{number}")))
    w.deliver(ticket, *chain[dice.randrange(3) :], **more)
    if dice.random() < 0.2:
        settle(store, _cancelled(store.cancel(f"t{dice.randrange(number + 1)}")))
    for running in list(w.running):
        if dice.random() < 0.5:
            w.finish(running, back=dice.random() < 0.2)
    clock.pass_(dice.random() / 4)
    store.beat(w.name)
    sweep_all(store)
    w.pick_up(ANY)


@pytest.mark.parametrize("seed", range(5))
def test_l15_after_a_mixed_load_nothing_is_left(store: Store, clock: Clock, seed: int) -> None:
    dice = random.Random(seed)
    mortal, survivor = Worker(store, "mortal"), Worker(store, "survivor", queue=dice.choice(["q", ""]))
    for number in range(60):
        if number == 40:
            mortal = Worker(store, "reborn")  # the first one is gone, with whatever it ran
        _mixed_round(store, clock, dice, dice.choice([mortal, survivor]), number)
        for w in (mortal, survivor):
            store.beat(w.name)
    live_on(clock, 30, survivor, mortal)
    assert audit(store) == []
    wind_up(clock, survivor, mortal)
    assert audit(store) == []


def test_l16_one_task_id_published_twice_runs_twice_under_the_limit(store: Store, clock: Clock) -> None:
    w = Worker(store)
    w.deliver("holder.n", A)
    w.deliver("same.1", A)
    w.deliver("same.2", A)
    assert line_at(store, "a") == ["same.1", "same.2"]
    w.finish("holder.n")
    assert w.pick_up(ANY) == ["same.1"]
    w.finish("same.1")
    assert w.pick_up(ANY) == ["same.2"]
    assert field_of(store, "same.2", "state") == "running"
    wind_up(clock, w)
