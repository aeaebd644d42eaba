"""What people set for the night: pauses and sizes for a time, queues that are paused, tasks that pass their limits;
and the log."""

from __future__ import annotations

import pytest

from celery_limits.store import Store
from celery_limits.store.audit import audit
from celery_limits.store.changes import MOST_KEPT, Author, Change, read_changes
from celery_limits.store.outcomes import Admitted, Parked
from celery_limits.store.steering import stopped_queues
from tests.store.actors import Clock, Worker, c, line_at, r, raw_client, ready_in, sweep_all, used

A = c("a", 1)


def ann(reason: str = "") -> Author:
    return Author("ann@desk", "cli", reason)


def log(store: Store) -> list[tuple[str, str, str | None, str | None, str, str]]:
    return [(o.what, o.subject, o.old, o.new, o.by, o.reason) for o in read_changes(store)]


# -- the log ---------------------------------------------------------------------------------------------------------


def test_each_change_is_recorded_with_who_what_and_why(store: Store, clock: Clock) -> None:
    store.resize("a", 5, author=ann("more of them"))
    at = clock.now / 1e6
    store.resize("a", 7, author=ann())
    store.resize("api", "100/m", 20, author=ann())
    store.reset("a", author=ann())
    store.pause("a", author=ann("it burns"))
    store.resume("a", author=Author("bob", "web"))
    assert log(store) == [
        ("resume", "a", "paused", None, "bob", ""),
        ("pause", "a", None, "paused", "ann@desk", "it burns"),
        ("reset", "a", "7", None, "ann@desk", ""),
        ("resize", "api", None, "100/m burst 20", "ann@desk", ""),
        ("resize", "a", "5", "7", "ann@desk", ""),
        ("resize", "a", None, "5", "ann@desk", "more of them"),
    ]
    first = read_changes(store)[-1]
    assert first == Change(at, "ann@desk", "cli", "resize", "a", None, "5", "more of them", None)
    assert [change.subject for change in read_changes(store, subject="api")] == ["api"]
    assert len(read_changes(store, 2)) == 2
    store.reset("api")


def test_a_call_without_an_author_is_not_recorded(store: Store) -> None:
    store.resize("a", 5)
    store.reset("a")
    assert read_changes(store) == []


def test_a_call_that_is_repeated_is_one_change(store: Store, clock: Clock) -> None:
    """The answer is lost, and the same call is made again: it neither counts twice nor lasts longer."""
    once = ann("once")
    store.pause("a", seconds=60, author=once)
    until = store.status("a").paused_by
    clock.pass_(1)
    store.pause("a", seconds=60, author=once)
    assert store.status("a").paused_by == until
    again = ann()
    store.resize("a", 5, seconds=60, author=again)
    store.resize("b", 5, author=ann())
    store.resize("a", 5, seconds=60, author=again)
    assert [change.subject for change in read_changes(store)] == ["b", "a", "a"]
    for key in "ab":
        store.reset(key)
    store.resume("a")


def test_the_log_is_capped(store: Store) -> None:
    for i in range(MOST_KEPT + 5):
        store.resize("a", i, author=ann())
    assert len(read_changes(store, 2 * MOST_KEPT)) == MOST_KEPT
    assert read_changes(store)[0].new == str(MOST_KEPT + 4)
    store.reset("a")


def test_an_entry_that_someone_else_wrote_is_passed_over(store: Store) -> None:
    for junk in (b"", b"[]", b"{}", b"\xff", b'{"at": "x"}'):
        raw_client(store).lpush(f"{store.prefix}changes", junk)
    store.resize("<script>\x1b[2J", 5, author=ann("\x1b[31m"))
    (change,) = read_changes(store)
    assert (change.subject, change.reason) == ("<script>\x1b[2J", "\x1b[31m")
    store.reset("<script>\x1b[2J")


def test_a_long_reason_is_refused_before_anything_changes(store: Store) -> None:
    with pytest.raises(ValueError, match="500 at most"):
        ann("x" * 501)


# -- for a time ------------------------------------------------------------------------------------------------------


def test_a_pause_for_a_time_ends_exactly_then_and_wakes_the_line(store: Store, clock: Clock) -> None:
    w = Worker(store)
    after = store.pause("a", seconds=8, author=ann("cooling"))
    until = clock.now + 8_000_000
    assert after.next_alarm == until
    status = store.status("a")
    assert status.paused_by is not None
    assert (status.paused, status.paused_by.reason, status.paused_by.until) == (True, "cooling", until / 1e6)
    assert isinstance(w.deliver("t.n", A), Parked)
    clock.now = until - 10
    sweep_all(store)
    assert line_at(store, "a") == ["t.n"]
    clock.now = until
    sweep_all(store)
    assert ready_in(store) == ["t.n"]
    assert not store.status("a").paused
    last = read_changes(store)[0]
    assert (last.what, last.via, last.reason) == ("resume", "store", "its time is up")
    assert raw_client(store).hgetall(f"{store.prefix}note:a") == {}
    assert w.pick_up(A) == ["t.n"]
    w.finish("t.n")


def test_a_later_pause_replaces_the_time_of_an_earlier_one(store: Store, clock: Clock) -> None:
    store.pause("a", seconds=5)
    store.pause("a", seconds=60)
    clock.pass_(6)
    sweep_all(store)
    assert store.status("a").paused
    store.pause("a")
    clock.pass_(100)
    sweep_all(store)
    assert store.status("a").paused, "without a time it lasts until it is resumed"
    store.resume("a")


@pytest.mark.parametrize("before", [None, 2])
def test_a_size_for_a_time_gives_way_to_what_was_before(store: Store, clock: Clock, before: int | None) -> None:
    if before:
        store.resize("a", before)
    store.resize("a", 9, seconds=3600, author=ann())
    store.resize("a", 8, seconds=3600, author=ann("a second time for a time"))
    assert store.status("a").size == 8
    clock.pass_(3601)
    sweep_all(store)
    assert store.status("a").size == before
    assert read_changes(store)[0].new == (None if before is None else str(before))
    store.reset("a")


def test_a_rate_for_a_time(store: Store, clock: Clock) -> None:
    store.resize("api", "1/h", 2)
    store.resize("api", "100/s", 5, seconds=60)
    clock.pass_(61)
    sweep_all(store)
    assert (store.status("api").limit, store.status("api").burst) == ("1/h", 2)
    store.reset("api")


def test_reset_and_a_lasting_size_end_the_time(store: Store, clock: Clock) -> None:
    store.resize("a", 9, seconds=60)
    store.resize("a", 4)
    store.resize("b", 9, seconds=60)
    store.reset("b")
    clock.pass_(61)
    sweep_all(store)
    assert (store.status("a").size, store.status("b").size) == (4, None)
    store.reset("a")


@pytest.mark.parametrize("seconds", [0, -1, 1e10])
def test_a_time_that_is_none_is_refused(store: Store, seconds: float) -> None:
    with pytest.raises(ValueError, match="a time above 0"):
        store.pause("a", seconds=seconds)
    assert store.keys() == []


def test_the_audit_finds_a_time_that_nothing_would_end(store: Store, clock: Clock) -> None:
    store.pause("a", seconds=60)
    store.resize("b", 5, seconds=60)
    store.stop_queue("q", seconds=60)
    assert audit(store) == []
    raw_client(store).delete(f"{store.prefix}alarms")
    assert {(f.code, f.subject) for f in audit(store, repair=True)} == {
        ("unforgotten", "a"), ("unforgotten", "b"), ("unforgotten", "queue q")
    }  # fmt: skip
    assert audit(store) == []
    clock.pass_(61)
    sweep_all(store)
    assert stopped_queues(store) == {}
    assert [store.status(key).known for key in "ab"] == [False, False]


# -- queues ----------------------------------------------------------------------------------------------------------


def test_nothing_is_fetched_from_a_paused_queue_until_it_is_resumed(store: Store) -> None:
    w = Worker(store)
    w.deliver("first.n", A)
    w.deliver("second.n", A)
    store.stop_queue("q", author=ann("deploy"))
    assert stopped_queues(store)["q"].reason == "deploy"
    raw_client(store).lpush("q", b"a message")
    w.finish("first.n")
    assert w.post.fetch(w.name, 10, queue="q") == []
    assert raw_client(store).llen("q") == 1
    store.start_queue("q", author=ann())
    found = w.post.fetch(w.name, 10, queue="q") or []
    assert len(found) == 2, "the message, and the task whose turn had come"
    w.post.acknowledge(w.name, [one.field for one in found])
    assert [(o[0], o[1]) for o in log(store)] == [("resume", "queue q"), ("pause", "queue q")]


def test_a_task_of_a_paused_queue_gives_its_turn_to_others_and_keeps_its_place(store: Store) -> None:
    """Else its slot would be idle for as long as a grant may take, and those behind it would wait for that."""
    w, other = Worker(store), Worker(store, "w2", "other")
    w.deliver("first.n", A)
    w.deliver("second.n", A)
    other.deliver("third.n", A)
    store.stop_queue("q")
    w.finish("first.n")
    assert used(store, "a") == 1
    assert other.pick_up(A) == ["third.n"]
    assert audit(store) == []
    other.deliver("fourth.n", A)
    store.start_queue("q")
    assert w.pick_up(A) == [], "it waits in line again"
    assert line_at(store, "a") == ["second.n", "fourth.n"], "in its old place"
    other.finish("third.n")
    assert w.pick_up(A) == ["second.n"]
    w.finish("second.n")
    assert other.pick_up(A) == ["fourth.n"]
    other.finish("fourth.n")


def test_a_queue_is_paused_for_a_time(store: Store, clock: Clock) -> None:
    store.stop_queue("q", seconds=60)
    clock.pass_(61)
    sweep_all(store)
    assert stopped_queues(store) == {}
    raw_client(store).delete(f"{store.prefix}call:q")


def beat(store: Store, clock: Clock) -> None:
    """Of a worker that keeps the time of the namespace."""
    store.beat("w@h/1/a")
    clock.keep()


def test_what_is_for_a_time_ends_on_time_when_the_clock_is_set_back(store: Store, clock: Clock) -> None:
    """It lasts as long as it was set for, and people read its end by the server's clock as it is now."""
    beat(store, clock)
    store.pause("a", seconds=60, author=ann())
    store.resize("b", 3, seconds=60)
    store.stop_queue("q", seconds=60)
    set_at = clock.now
    clock.step_back(3600)
    beat(store, clock)
    paused, resized, queue = store.status("a"), store.status("b"), stopped_queues(store)["q"]
    assert paused.paused_by is not None
    assert resized.resized_by is not None
    ends = (set_at + 60_000_000 - clock.ahead) / 1e6
    for shown in (paused.paused_by.until, resized.resized_by.until, queue.until):
        assert shown == pytest.approx(ends, abs=1e-4)
    assert ends - paused.now == pytest.approx(60, abs=1)
    store.pause("c", seconds=60, author=ann())
    newest = read_changes(store)[0]
    assert newest.at == pytest.approx(clock.server / 1e6, abs=1e-4), "the log is by the server's clock"
    assert newest.until == pytest.approx(newest.at + 60, abs=1e-4)
    clock.now = set_at + 59_000_000
    sweep_all(store)
    assert store.status("a").paused
    clock.now = set_at + 61_000_000
    sweep_all(store)
    assert (store.status("a").paused, store.status("b").steered, stopped_queues(store)) == (False, False, {})
    store.resume("c")
    store.leave("w@h/1/a")
    raw_client(store).delete(f"{store.prefix}call:q")


# -- run now ---------------------------------------------------------------------------------------------------------


def test_one_waiter_passes_its_limits_and_nobody_else_does(store: Store) -> None:
    w = Worker(store)
    chain = (A, c("b", 1), r("api", "1/h"))
    w.deliver("blocks.n", c("b", 1))
    w.deliver("holds.n", A)
    for name in ("first.n", "second.n"):
        w.deliver(name, *chain)
    forced = store.run_now("second", author=ann("the customer waits"))
    assert (forced.let, forced.begun, forced.keys) == (1, 0, ("a", "b"))
    assert (used(store, "a"), used(store, "b")) == (2, 2)
    assert log(store)[0] == ("run", "task second", "waiting", "past a, b", "ann@desk", "the customer waits")
    assert [store.status(key).forced for key in ("a", "b", "api")] == [1, 1, 0]
    again = store.run_now("second", author=ann())
    assert (again.let, again.begun) == (0, 1)
    assert len(log(store)) == 1, "a repeated call changes nothing, and records nothing"
    assert w.pick_up(*chain) == ["second.n"]
    w.finish("holds.n")
    assert line_at(store, "a") == ["first.n"], "the key is not below its size yet"
    w.finish("second.n")
    w.finish("blocks.n")
    assert line_at(store, "api") == ["first.n"], "the rate was charged for the one that passed"
    assert audit(store) == []
    store.settle(store.cancel("first").ended)
    raw_client(store).delete(f"{store.prefix}rates")


def test_it_passes_a_paused_key_and_a_rate_of_none(store: Store) -> None:
    w = Worker(store)
    store.pause("a")
    stop = r("never", "0/s")
    assert isinstance(w.deliver("t.n", A, stop), Parked)
    assert store.run_now("t").keys == ("a", "never")
    assert w.pick_up(A, stop) == ["t.n"]
    w.finish("t.n")
    store.resume("a")


def test_what_does_not_wait_is_left_alone(store: Store) -> None:
    w = Worker(store)
    assert isinstance(w.deliver("t.n", A), Admitted)
    assert (store.run_now("t").let, store.run_now("t").begun, store.run_now("none").begun) == (0, 1, 0)
    assert read_changes(store) == []
    w.finish("t.n")


def test_bodies_are_counted_apart_from_slots(store: Store) -> None:
    w = Worker(store)
    w.deliver("runs.n", c("a", 3))
    w.deliver("blocks.n", c("b", 1))
    w.deliver("waits.n", c("a", 3), c("b", 1))
    status = store.status("a")
    assert (status.held, status.bodies) == (2, 1)
    w.finish("blocks.n")
    w.pick_up(c("a", 3), c("b", 1))
    assert store.status("a").bodies == 2
    for name in ("runs.n", "waits.n"):
        w.finish(name)
