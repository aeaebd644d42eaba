"""The audit: every discrepancy it knows, made by hand, is named with its key or ticket and mended, and all run."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from celery_limits.store import Store
from celery_limits.store.audit import Finding, audit
from celery_limits.store.outcomes import Admitted
from tests.store.actors import (
    ANY,
    HEAD,
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
    sweep_all,
    wind_up,
)

A, B = c("a", 1), c("b", 1)
Corruption = Callable[[Store, Worker, Clock], None]


def _drop(store: Store, name: str) -> None:
    assert raw_client(store).delete(store.prefix + name) == 1


def _zrem(store: Store, name: str, member: str) -> None:
    assert raw_client(store).zrem(store.prefix + name, member) == 1


def _cast(store: Store, w: Worker) -> None:
    """runs.n holds a and b; first.n and second.n wait at a, the second with a chain behind it."""
    w.deliver("runs.n", A, B)
    w.deliver("first.n", A)
    w.deliver("second.n", A, B)


def _granted(store: Store, w: Worker) -> None:
    w.finish("runs.n")
    assert ready_in(store, w.queue) == ["first.n"] or w.queue == ""


def holder_without_ticket(store: Store, w: Worker, clock: Clock) -> None:
    raw_client(store).hset(f"{store.prefix}hold:a", "ghost.n", 1)


def heavier_than_it_claims(store: Store, w: Worker, clock: Clock) -> None:
    raw_client(store).hset(f"{store.prefix}hold:a", "runs.n", 2)


def running_without_its_slot(store: Store, w: Worker, clock: Clock) -> None:
    raw_client(store).hdel(f"{store.prefix}hold:b", "runs.n")


def waiting_without_its_slot(store: Store, w: Worker, clock: Clock) -> None:
    w.deliver("holds-c.n", c("c", 1), A)
    raw_client(store).hdel(f"{store.prefix}hold:c", "holds-c.n")


def granted_without_its_slot(store: Store, w: Worker, clock: Clock) -> None:
    _granted(store, w)
    raw_client(store).hdel(f"{store.prefix}hold:a", "first.n")


def room_beside_a_waiter(store: Store, w: Worker, clock: Clock) -> None:
    raw_client(store).hset(f"{store.prefix}note:a", "size", 2)


def waiter_without_ticket(store: Store, w: Worker, clock: Clock) -> None:
    raw_client(store).zadd(f"{store.prefix}line:c:1:a", {"ghost.n": 5})


def waits_in_no_line(store: Store, w: Worker, clock: Clock) -> None:
    _zrem(store, "line:c:1:a", "first.n")


def waits_beyond_its_chain(store: Store, w: Worker, clock: Clock) -> None:
    damage(store, "first.n", HEAD.index("at"), b"2")


def a_line_its_note_hides(store: Store, w: Worker, clock: Clock) -> None:
    raw_client(store).hdel(f"{store.prefix}note:a", "class:c:1")


def granted_in_no_queue(store: Store, w: Worker, clock: Clock) -> None:
    _granted(store, w)
    _drop(store, "ready:q")


def granted_in_no_outbox(store: Store, w: Worker, clock: Clock) -> None:
    w.deliver("other.n", c("o", 1))
    w.deliver("sent.n", c("o", 1), queue="")
    w.finish("other.n")
    _drop(store, "outbox")


def granted_for_ever(store: Store, w: Worker, clock: Clock) -> None:
    _granted(store, w)
    _zrem(store, "alarms", "grant|first.n")


def away_for_ever(store: Store, w: Worker, clock: Clock) -> None:
    w.deliver("back.n", c("o", 1))
    w.finish("back.n", back=True)
    _zrem(store, "alarms", "forget|back.n")


def ended_untold(store: Store, w: Worker, clock: Clock) -> None:
    store.cancel("first")
    _drop(store, "outbox")


def a_rate_that_never_rings(store: Store, w: Worker, clock: Clock) -> None:
    w.deliver("rate1.n", r("api", "1/m"))
    w.deliver("rate2.n", r("api", "1/m"))
    _zrem(store, "alarms", "rate|api")


def lapsed_lease(store: Store, w: Worker, clock: Clock) -> None:
    Worker(store, "w2").deliver("on-w2.n", c("o", 1))
    for _ in range(6):
        clock.pass_(2)
        store.beat("w1")


def tickets_without_a_lease(store: Store, w: Worker, clock: Clock) -> None:
    Worker(store, "w2").deliver("on-w2.n", c("o", 1))
    _zrem(store, "leases", "w2")


def a_lease_without_its_worker(store: Store, w: Worker, clock: Clock) -> None:
    lapsed_lease(store, w, clock)
    _drop(store, "worker:w2")


def runs_on_a_worker_that_does_not_know_it(store: Store, w: Worker, clock: Clock) -> None:
    w.deliver("orphan.n", c("o", 1))
    _zrem(store, "worker:w1", "orphan.n")
    w.running.pop("orphan.n")


def stray_outbox_entry(store: Store, w: Worker, clock: Clock) -> None:
    raw_client(store).zadd(f"{store.prefix}outbox", {"ghost.n": 1})


def stray_queue_entry(store: Store, w: Worker, clock: Clock) -> None:
    raw_client(store).zadd(f"{store.prefix}ready:q", {"ghost.n": 1})


def lost_spare(store: Store, w: Worker, clock: Clock) -> None:
    w.deliver("runs.n", A, B)
    raw_client(store).hdel(f"{store.prefix}task:runs", "n:m")


@pytest.mark.parametrize(
    ("corrupt", "what", "subject"),
    [
        (holder_without_ticket, "holder-without-ticket", "a"),
        (heavier_than_it_claims, "holder-without-ticket", "a"),
        (running_without_its_slot, "missing-slot", "runs.n"),
        (waiting_without_its_slot, "missing-slot", "holds-c.n"),
        (granted_without_its_slot, "missing-slot", "first.n"),
        (room_beside_a_waiter, "room-beside-waiter", "a"),
        (waiter_without_ticket, "waiter-without-ticket", "a"),
        (waits_in_no_line, "lost-waiter", "first.n"),
        (waits_beyond_its_chain, "lost-waiter", "first.n"),
        (a_line_its_note_hides, "hidden-line", "a"),
        (granted_in_no_queue, "lost-message", "first.n"),
        (granted_in_no_outbox, "lost-message", "sent.n"),
        (granted_for_ever, "unforgotten", "first.n"),
        (away_for_ever, "unforgotten", "back.n"),
        (ended_untold, "lost-end", "first.n"),
        (a_rate_that_never_rings, "unforgotten", "api"),
        (lapsed_lease, "lapsed-lease", "w2"),
        (tickets_without_a_lease, "lapsed-lease", "w2"),
        (a_lease_without_its_worker, "lapsed-lease", "w2"),
        (runs_on_a_worker_that_does_not_know_it, "orphan", "orphan.n"),
        (stray_outbox_entry, "stray-entry", "outbox"),
        (stray_queue_entry, "stray-entry", "ready:q"),
        (lost_spare, "lost-message", "runs.n"),
    ],
)
def test_each_discrepancy_is_named_mended_and_gone(
    store: Store, clock: Clock, corrupt: Corruption, what: str, subject: str
) -> None:
    w = Worker(store)
    _cast(store, w)
    assert audit(store) == []
    corrupt(store, w, clock)
    found = audit(store)
    assert (what, subject) in [(finding.code, finding.subject) for finding in found]
    assert audit(store) == found, "looking changes nothing"

    mended = audit(store, repair=True)
    assert (what, subject) in [(finding.code, finding.subject) for finding in mended]
    assert all(finding.repaired for finding in mended)
    assert audit(store) == []
    started = wind_up(clock, w)
    ended = {"first.n"} if corrupt is ended_untold else set()
    assert set(started) >= {"first.n", "second.n"} - ended
    raw_client(store).hdel(f"{store.prefix}note:a", "size")


@pytest.mark.parametrize("listed", ["ready:q", "outbox"])
def test_what_was_taken_since_the_list_was_read_is_no_stray(store: Store, clock: Clock, listed: str) -> None:
    """The audit goes in steps, and meanwhile others work: its turn came, a worker took it, and it runs."""
    w = Worker(store)
    _cast(store, w)
    assert store.inspect([("listed", listed, "runs.n")], mend=False) == []
    wind_up(clock, w)


@pytest.mark.leaves_traces
def test_a_waiter_whose_message_is_gone_is_set_aside_and_the_others_run(store: Store, clock: Clock) -> None:
    w = Worker(store)
    _cast(store, w)
    raw_client(store).hdel(f"{store.prefix}task:first", "n:m")
    (finding,) = audit(store)
    assert (finding.code, finding.subject) == ("lost-message", "first.n")
    audit(store, repair=True)
    assert audit(store) == []
    assert raw_client(store).hkeys(f"{store.prefix}aside") == [b"first.n"]
    assert wind_up(clock, w) == ["second.n"]


@pytest.mark.leaves_traces
def test_a_heavy_waiter_whose_message_is_gone_bars_nobody_once_mended(store: Store, clock: Clock) -> None:
    w = Worker(store)
    w.deliver("one.n", c("k", 3))
    w.deliver("two.n", c("k", 3))
    w.deliver("heavy.n", c("k", 3, weight=3))
    w.deliver("light.n", c("k", 3, weight=2))
    w.finish("one.n")
    raw_client(store).hdel(f"{store.prefix}task:heavy", "n:m")
    audit(store, repair=True)
    assert ready_in(store) == ["light.n"]
    wind_up(clock, w)


@pytest.mark.leaves_traces
def test_an_unreadable_record_is_set_aside_and_its_slots_are_freed(store: Store, clock: Clock) -> None:
    w = Worker(store)
    _cast(store, w)
    overwrite(store, "runs.n", b"rubbish")
    assert ("unreadable-record", "runs.n") in [(finding.code, finding.subject) for finding in audit(store)]
    w.running.pop("runs.n")
    audit(store, repair=True)
    assert audit(store) == []
    assert holders(store, "a") == {"first.n"}
    assert wind_up(clock, w) == ["first.n", "second.n"]


def test_a_message_without_its_record_is_named(store: Store, clock: Clock) -> None:
    w = Worker(store)
    raw_client(store).hset(f"{store.prefix}task:ghost", "n:m", "a message that nothing refers to")
    assert [finding.subject for finding in audit(store)] == ["ghost.n"]
    audit(store, repair=True)
    assert names_in(store, "task:*") == []
    raw_client(store).delete(f"{store.prefix}aside")
    wind_up(clock, w)


def test_a_finding_reads_as_a_sentence() -> None:
    finding = Finding("missing-slot", "t.n", "is running but lacks its slot of a")
    assert str(finding) == "missing-slot: t.n: is running but lacks its slot of a"


def test_a_healthy_busy_namespace_has_no_findings(store: Store, clock: Clock) -> None:
    w, sender = Worker(store), Worker(store, "sender", queue="")
    for i in range(40):
        worker = (w, sender)[i % 2]
        worker.deliver(f"t{i}.n", c(f"tenant:{i % 4}", 2), c("all", 5, weight=1 + i % 2), r("api", "50/s", burst=5))
        worker.deliver(f"f{i}.n", f("fl", 3), rank=i % 3, expires=clock.now + 9_000_000)
        clock.pass_(0.02)
        if i % 5 == 0 and worker.running:
            ticket = next(iter(worker.running))
            worker.finish(ticket, back=i % 2 == 0)
        if i % 7 == 0:
            store.cancel(f"t{i}")
        sweep_all(store)
        w.pick_up(ANY, count=1)
        assert audit(store) == [], f"round {i}"
    assert line_at(store, "all")
    w.fetch(2)
    store.claim(2)
    store.pause("fl")
    assert audit(store) == []
    store.resume("fl")
    clock.pass_(40)
    for name in ("w1", "sender"):
        store.beat(name)
    wind_up(clock, w, sender)


def test_mending_is_for_what_is_wrong_only(store: Store, clock: Clock) -> None:
    w = Worker(store)
    _cast(store, w)
    before = {name: raw_client(store).dump(store.prefix + name) for name in names_in(store, "[!p]*")}
    assert audit(store, repair=True) == []
    after = {name: raw_client(store).dump(store.prefix + name) for name in names_in(store, "[!p]*")}
    assert after == before
    wind_up(clock, w)


# -- deadlock ------------------------------------------------------------------------------------------------


def _circle(store: Store, w: Worker, ranks: tuple[int, int] = (0, 0)) -> None:
    """ab.n holds a and waits at b; ba.n holds b and waits at a."""
    w.deliver("in-a.n", A)
    w.deliver("in-b.n", B)
    w.deliver("ab.n", A, B, rank=ranks[0])
    w.deliver("ba.n", B, A, rank=ranks[1])
    # Whoever would be first at its second key gets its own key first.
    for ticket in ("in-a.n", "in-b.n") if ranks[0] > ranks[1] else ("in-b.n", "in-a.n"):
        w.finish(ticket)
    assert (holders(store, "a"), holders(store, "b")) == ({"ab.n"}, {"ba.n"})


@pytest.mark.parametrize("ranks", [(0, 0), (5, 0), (0, 5)])
def test_a_circle_is_broken_whatever_the_priorities(store: Store, clock: Clock, ranks: tuple[int, int]) -> None:
    w = Worker(store)
    _circle(store, w, ranks)
    assert [finding.code for finding in audit(store)] == ["deadlock"]
    audit(store, repair=True)
    assert audit(store) == []
    assert sorted(wind_up(clock, w)) == ["ab.n", "ba.n"]


def test_a_circle_is_broken_though_younger_ones_wait_behind_it(store: Store, clock: Clock) -> None:
    w = Worker(store)
    _circle(store, w)
    w.deliver("behind-a.n", A)
    w.deliver("behind-b.n", B)
    (finding,) = audit(store)
    assert finding.code == "deadlock"
    assert finding.subject in ("ab.n", "ba.n"), "to start over helps only if it holds something"
    audit(store, repair=True)
    assert audit(store) == []
    assert wind_up(clock, w)[0] == "ab.n"


def test_two_circles_of_three_are_both_broken(store: Store, clock: Clock) -> None:
    w = Worker(store)
    for circle in "xy":
        keys = [c(f"{circle}{i}", 1) for i in range(3)]
        for i, key in enumerate(keys):
            w.deliver(f"{circle}-in-{i}.n", key)
        for i in range(3):
            w.deliver(f"{circle}{i}.n", keys[i], keys[(i + 1) % 3])
        store.pause(f"{circle}0")
        for i in (2, 1, 0):
            w.finish(f"{circle}-in-{i}.n")
        store.resume(f"{circle}0")
    assert audit(store) != []
    audit(store, repair=True)
    assert audit(store) == []
    assert len(wind_up(clock, w)) == 6


def test_waiting_for_one_who_runs_is_no_circle(store: Store, clock: Clock) -> None:
    w = Worker(store)
    w.deliver("runs.n", B)
    w.deliver("ab.n", A, B)
    w.deliver("a.n", A)
    assert audit(store) == []
    live_on(clock, 30, w)
    assert audit(store) == []
    assert isinstance(w.deliver("free.n", c("free", 1)), Admitted)
    assert field_of(store, "ab.n", "state") == "waiting"
    assert wind_up(clock, w) == ["ab.n", "a.n"]
