"""What status and explain tell a person: who holds, who waits, since when, at which place, and for how much longer."""

from __future__ import annotations

import pytest

from celery_limits.store import Store
from tests.store.actors import ANY, SECOND, Clock, Worker, c, f, live_on, r, settle, wind_up

A, B = c("a", 1), c("b", 1)


def test_status_names_holders_and_waiters_with_their_times(store: Store, clock: Clock) -> None:
    w = Worker(store)
    w.deliver("runs.n", A)
    since = clock.now
    clock.pass_(3)
    w.deliver("second.n", A, rank=1)
    w.deliver("first.n", A)
    status = store.status("a")
    assert (status.key, status.running, status.waiting, status.paused) == ("a", 1, 2, False)
    (holder,) = status.holders
    assert (holder.ticket, holder.task_id, holder.state, holder.worker) == ("runs.n", "runs", "running", "w1")
    assert holder.since == pytest.approx(since / SECOND)
    assert [waiter.task_id for waiter in status.waiters] == ["first", "second"]
    assert status.now == pytest.approx(clock.now / SECOND)
    wind_up(clock, w)


def test_status_of_a_key_that_nobody_uses(store: Store) -> None:
    status = store.status("quiet")
    assert (status.running, status.waiting, status.size, status.rate, status.holders) == (0, 0, None, None, ())


def test_status_counts_all_and_names_a_page(store: Store, clock: Clock) -> None:
    w = Worker(store)
    for i in range(100):
        w.deliver(f"t{i}.n", c("k", 40))
    status = store.status("k", page=7)
    assert (status.running, status.waiting) == (40, 60)
    assert len(status.holders) == len(status.waiters) == 7
    wind_up(clock, w)


def test_a_heavy_holder_is_named_once_however_heavy(store: Store, clock: Clock) -> None:
    w = Worker(store)
    w.deliver("heavy.n", c("k", 1000, weight=1000))
    w.deliver("t.n", c("k", 1000))
    assert [holder.task_id for holder in store.status("k").holders] == ["heavy"]
    assert [holder.task_id for holder in store.explain("t").tickets[0].holders] == ["heavy"]
    wind_up(clock, w)


def test_status_tells_what_steers_the_key(store: Store, clock: Clock) -> None:
    w = Worker(store)
    store.resize("a", 5)
    store.resize("api", "2/s", burst=3)
    store.pause("a")
    w.deliver("t.n", r("api", "1/s"))
    status, rate = store.status("a"), store.status("api")
    assert (status.size, status.paused) == (5, True)
    assert rate.rate == "500000 3"
    assert rate.next_token == pytest.approx(clock.now / SECOND + 0.5, abs=0.001)
    store.reset("a")
    store.reset("api")
    store.resume("a")
    wind_up(clock, w)


def test_explain_says_where_it_waits_since_when_and_for_whom(store: Store, clock: Clock) -> None:
    w = Worker(store)
    w.deliver("runs.n", B)
    w.deliver("ahead.n", B)
    clock.pass_(2)
    w.deliver("t.n", A, B)
    parked_at = clock.now / SECOND
    (story,) = store.explain("t").tickets
    assert (story.state, story.key, story.link, story.held) == ("waiting", "b", 1, ("a",))
    assert (story.place, story.waiting, story.size, story.running) == (2, 2, 1, 1)
    assert story.since == pytest.approx(parked_at)
    assert [holder.task_id for holder in story.holders] == ["runs"]
    assert story.estimate is None, "the line has not moved yet"
    assert "waits at 'b', 2 of 2 in line; 1 of 1 slots are taken, held by runs on w1" in str(store.explain("t"))
    wind_up(clock, w)


def test_explain_estimates_from_the_pace_of_the_line(store: Store, clock: Clock) -> None:
    w = Worker(store)
    for i in range(10):
        w.deliver(f"t{i}.n", A)
    for i in range(5):
        live_on(clock, 4, w)
        w.finish(f"t{i}.n")
        w.pick_up(ANY)
    (story,) = store.explain("t8").tickets
    assert story.place == 3
    assert story.estimate == pytest.approx(3 * 4, rel=0.01)
    assert "about 12.0 s to go" in str(story)
    wind_up(clock, w)


def test_explain_a_rate_says_when_it_is_due(store: Store, clock: Clock) -> None:
    w = Worker(store)
    w.deliver("spender.n", r("api", "1/m"))
    w.deliver("t.n", r("api", "1/m"))
    (story,) = store.explain("t").tickets
    assert (story.key, story.size) == ("api", None)
    assert story.due == pytest.approx(clock.now / SECOND + 60, abs=0.001)
    wind_up(clock, w)


@pytest.mark.parametrize("state", ["running", "granted", "away", "ended", "paused"])
def test_explain_every_other_state(store: Store, clock: Clock, state: str) -> None:
    w = Worker(store)
    w.deliver("first.n", A)
    w.deliver("t.n", A)
    if state == "ended":
        store.cancel("t")
    elif state == "paused":
        store.pause("a")
    else:
        w.finish("first.n")
    if state == "away":
        live_on(clock, store.policy.grant_timeout + 1, w)
    if state == "running":
        w.pick_up(ANY)
    (story,) = store.explain("t").tickets
    assert (story.state, story.paused) == (("waiting", True) if state == "paused" else (state, False))
    assert state in str(store.explain("t"))
    assert ("revoked" in str(story)) == (state == "ended")
    assert ("holds no slot" in str(story)) == (state == "away")
    assert ("on the way to a worker" in str(story)) == (state == "granted")
    store.resume("a")
    settle(store, ["t.n"] if state == "ended" else [])
    wind_up(clock, w)


def test_explain_all_tickets_of_a_task_and_one_never_heard_of(store: Store, clock: Clock) -> None:
    w = Worker(store)
    w.deliver("t.1", A)
    w.deliver("t.2", f("fl", 3), A)
    assert sorted((s.ticket, s.state) for s in store.explain("t").tickets) == [("t.1", "running"), ("t.2", "waiting")]
    nothing = store.explain("never heard of")
    assert nothing.tickets == ()
    assert "not known to the limits" in str(nothing)
    wind_up(clock, w)


def test_reading_changes_nothing(store: Store, clock: Clock) -> None:
    w = Worker(store)
    w.deliver("t1.n", A, r("api", "1/m"))
    w.deliver("t2.n", A, r("api", "1/m"))
    before = _everything(store)
    store.status("a")
    store.status("api")
    store.explain("t1")
    store.explain("t2")
    assert _everything(store) == before
    wind_up(clock, w)


def _everything(store: Store) -> dict[bytes, object]:
    client = store.client
    return {key: client.dump(key) for key in client.scan_iter(match=f"{store.prefix}*")}
