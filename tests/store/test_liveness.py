"""Leases: who is dead and who is only cut off, and what becomes of what they had."""

from __future__ import annotations

import pytest

from celery_limits.store import Store
from celery_limits.store.audit import audit
from celery_limits.store.outcomes import Admitted, Joined, Lost, Released, Renewed
from celery_limits.transport.queue_scripts import QueueScripts
from tests.redis_server import RedisServer
from tests.store.actors import (
    ANY,
    Clock,
    Worker,
    c,
    f,
    holders,
    live_on,
    names_in,
    queued_in,
    raw_client,
    ready_in,
    sweep_all,
    used,
    wind_up,
)

A = c("a", 1)


def test_a_beat_joins_then_renews(store: Store) -> None:
    assert isinstance(store.beat("w"), Joined)
    assert isinstance(store.beat("w"), Renewed)
    store.leave("w")
    assert isinstance(store.beat("w"), Joined)
    store.leave("w")


def test_a_beat_that_only_renews_gives_no_lease(store: Store) -> None:
    assert isinstance(store.beat("w", renew=True), Lost)
    assert isinstance(store.beat("w"), Joined)
    assert isinstance(store.beat("w", renew=True), Renewed)
    store.leave("w")
    assert isinstance(store.beat("w", renew=True), Lost)
    assert isinstance(store.beat("w"), Joined)
    store.leave("w")


def test_listening_outlasts_no_client_s_patience(redis_server: RedisServer) -> None:
    """A client that waits half a second for an answer must not take the silence of an idle store for an outage."""
    with redis_server.client(socket_timeout=0.5) as client:
        Store(client, "test").listen(2.0)


def test_a_lapsed_lease_is_found_within_a_lease_and_a_sweep(store: Store, clock: Clock) -> None:
    w1, w2 = Worker(store, "w1"), Worker(store, "w2")
    w1.deliver("t.n", A, late=True)
    w2.deliver("next.n", A)
    assert live_on(clock, store.policy.lease - 0.5, w2) == []
    assert live_on(clock, 1, w2) == ["w1"]
    assert ready_in(store) == ["next.n"]
    wind_up(clock, w2)


def test_one_that_beats_again_before_the_sweep_has_lost_nothing(store: Store, clock: Clock) -> None:
    w = Worker(store)
    w.deliver("t.n", A)
    clock.pass_(store.policy.lease + 5)
    assert isinstance(store.beat("w1"), Renewed)
    assert sweep_all(store) == []
    assert isinstance(w.finish("t.n"), Released)
    wind_up(clock, w)


def test_after_an_outage_of_the_store_everyone_has_a_leases_time_to_come_back(store: Store, clock: Clock) -> None:
    w1, w2, w3 = (Worker(store, name) for name in ("w1", "w2", "w3"))
    for worker in (w1, w2, w3):
        worker.deliver(f"{worker.name}.n", c("k", 3), late=True)
    clock.pass_(10 * store.policy.lease)  # nobody could reach the store
    store.beat("w1")
    assert live_on(clock, store.policy.lease / 2, w1) == []
    assert isinstance(store.beat("w2"), Renewed)
    assert live_on(clock, store.policy.lease / 2 - 0.5, w1, w2) == []
    assert holders(store, "k") == {"w1.n", "w2.n", "w3.n"}
    assert live_on(clock, 3, w1, w2) == ["w3"]
    assert holders(store, "k") == {"w1.n", "w2.n"}
    assert isinstance(w2.finish("w2.n"), Released)
    wind_up(clock, w1, w2)


def test_a_sweep_as_the_first_call_after_an_outage_declares_nobody_dead(store: Store, clock: Clock) -> None:
    w1, w2 = Worker(store, "w1"), Worker(store, "w2")
    clock.pass_(10 * store.policy.lease)
    assert sweep_all(store) == []
    assert all(isinstance(store.beat(w.name), Renewed) for w in (w1, w2))
    wind_up(clock, w1, w2)


@pytest.mark.parametrize("repair", [False, True])
def test_an_audit_as_the_first_call_after_an_outage_finds_nobody_dead(store: Store, clock: Clock, repair: bool) -> None:
    w1, w2 = Worker(store, "w1"), Worker(store, "w2")
    w1.deliver("t.n", A)
    clock.pass_(10 * store.policy.lease)
    assert audit(store, repair=repair) == []
    assert all(isinstance(store.beat(w.name), Renewed) for w in (w1, w2))
    assert isinstance(w1.finish("t.n"), Released)
    wind_up(clock, w1, w2)


def test_an_audit_a_lease_later_finds_that_nobody_came_back(store: Store, clock: Clock) -> None:
    w1, w2 = Worker(store, "w1"), Worker(store, "w2")
    w1.deliver("t.n", A)
    clock.pass_(10 * store.policy.lease)
    assert audit(store) == []
    clock.pass_(store.policy.lease + 1)
    assert {(finding.code, finding.subject) for finding in audit(store)} == {("lapsed-lease", w) for w in ("w1", "w2")}
    audit(store, repair=True)
    assert holders(store, "a") == set()
    wind_up(clock, w2)


def test_in_the_grace_after_an_outage_a_sweep_does_not_ask_to_be_called_at_once(store: Store, clock: Clock) -> None:
    w = Worker(store)
    clock.pass_(10 * store.policy.lease)
    sweep_all(store)
    next_alarm = store.sweep().after.next_alarm
    assert next_alarm is not None
    assert next_alarm > clock.now, "a sweeper that believes it would spin until the grace is over"
    wind_up(clock, w)


def test_when_all_have_died_a_newcomer_recovers_everything(store: Store, clock: Clock) -> None:
    for name in ("w1", "w2"):
        Worker(store, name).deliver(f"{name}.n", c("k", 2), late=True)
    clock.pass_(100 * store.policy.lease)
    newcomer = Worker(store, "newcomer")
    assert sorted(live_on(clock, store.policy.lease + 3, newcomer)) == ["w1", "w2"]
    assert holders(store, "k") == set()
    assert audit(store) == []
    wind_up(clock, newcomer)


def test_the_dead_are_buried_in_batches_and_their_id_stays_barred_meanwhile(store: Store, clock: Clock) -> None:
    w1, w2 = Worker(store, "w1"), Worker(store, "w2")
    for i in range(50):
        w1.deliver(f"t{i}.n", c("k", 50), late=True)
    while store.sweep(batch=10).dead != ("w1",):
        clock.pass_(2)
        store.beat("w2")
    left, rounds = used(store, "k"), 0
    assert 0 < left <= 50
    assert isinstance(store.beat("w1"), Lost)
    while store.sweep(batch=10).after.more:
        rounds += 1
        assert used(store, "k") <= left
        left = used(store, "k")
    assert rounds >= 3
    assert holders(store, "k") == set()
    assert isinstance(store.beat("w1"), Joined)
    wind_up(clock, w2, w1)


def test_a_name_is_lost_until_all_that_it_had_fetched_is_given_back(store: Store, clock: Clock) -> None:
    """Else what it fetches in its new life would be given to others with the rest."""
    w2, client = Worker(store, "w2"), raw_client(store)
    store.beat("w1")
    client.lpush("q", *(b"message %d" % i for i in range(3)))
    scripts = QueueScripts(store.client, store.prefix)
    scripts.fetch_now("w1", "mark", 3, ["1", "q", "", "", "1", "0", "q"])
    dead: tuple[str, ...] = ()
    while not dead:
        clock.pass_(store.policy.lease / 4)
        store.beat(w2.name)
        dead = store.sweep(w2.name, batch=1).dead
    rounds = 0
    while scripts.fetched_by("w1"):
        rounds += 1
        assert isinstance(store.beat("w1"), Lost)
        store.sweep(w2.name, batch=1)
    assert rounds >= 2
    assert isinstance(store.beat("w1"), Joined)
    assert client.llen("q") == 3
    scripts.close()
    client.delete("q")
    wind_up(clock, w2)
    store.leave("w1")


def test_leave_gives_back_everything_at_once(store: Store, clock: Clock) -> None:
    w1, w2 = Worker(store, "w1"), Worker(store, "w2")
    w1.deliver("early.n", A)
    w1.deliver("late.n", c("b", 1), late=True)
    w2.deliver("next.n", A)
    w2.deliver("first.n", c("c", 1))
    w2.deliver("fetched.n", c("c", 1))
    w2.finish("first.n")
    w1.fetch()
    while store.leave("w1").more:
        pass
    assert holders(store, "a") == {"next.n"}
    assert holders(store, "b") == set()
    assert ready_in(store) == ["next.n"]
    assert queued_in(store) == ["fetched.n"]
    assert isinstance(w2.deliver("late.n", c("b", 1)), Admitted)
    assert "w1" not in " ".join(names_in(store, "*"))
    wind_up(clock, w2)


def test_leaving_twice_or_unknown_is_harmless(store: Store, clock: Clock) -> None:
    w = Worker(store)
    store.leave("nobody")
    store.leave("w1")
    store.leave("w1")
    assert names_in(store, "w*") == []
    store.beat(w.name)
    wind_up(clock, w)


@pytest.mark.parametrize("late", [False, True])
def test_what_the_broker_has_waits_for_its_redelivery_and_then_keeps_its_place(
    store: Store, clock: Clock, late: bool
) -> None:
    w1, w2 = Worker(store, "w1"), Worker(store, "w2")
    w1.deliver("t.n", A, late=late)
    w2.deliver("younger.n", A)
    w2.deliver("youngest.n", A)
    live_on(clock, store.policy.lease + 1, w2)
    w2.deliver("t.n", A, late=late)
    assert wind_up(clock, w2) == ["younger.n", "t.n", "youngest.n"]


def test_a_dead_worker_that_sweeps_is_not_asked_to_refresh_nor_revived_by_it(store: Store, clock: Clock) -> None:
    """It stalled past its lease, and its first call is a sweep: that finds it dead, and must not give it work."""
    w1, w2 = Worker(store, "w1"), Worker(store, "w2")
    w1.deliver("t1.n", f("fl", 1))
    w2.deliver("t2.n", f("fl", 1))
    w2.deliver("t3.n", f("fl", 1))
    for _ in range(12):
        clock.pass_(2)
        store.beat("w2")
    assert store.sweep("w1").after.refreshes == ()
    assert isinstance(store.admit("new.n", (A,), "w1", delivery="d", message=b"m"), Lost)
    sweep_all(store)
    w1.running.clear()
    assert raw_client(store).exists(f"{store.prefix}worker:w1") == 0
    w2.pick_up(ANY)
    wind_up(clock, w2)
