"""A release that acknowledges and hands over in the same step: when it does, what is recorded, and what becomes of a
ticket that was handed over and does not run.

`w` runs first.n and second.n waits behind it. Both came straight from a publisher, so nobody has asked yet whether
they are acknowledged early or late.
"""

from __future__ import annotations

import pytest

from celery_limits.store import Policy, Store
from celery_limits.store.audit import audit
from celery_limits.store.outcomes import Admitted, Corrupt, Handed, Parked, Released, Stale
from tests.store.actors import (
    Clock,
    Worker,
    c,
    field_of,
    holders,
    line_at,
    live_on,
    overwrite,
    raw_client,
    ready_in,
    sweep_all,
    unacked_by,
    wind_up,
)
from tests.store.post import Fetched, taking

A = c("a", 1)
MESSAGE = b'{"eta": null, "n": "%s"}'


def text_of(ticket: str) -> bytes:
    return MESSAGE % ticket.encode()


def parked(w: Worker, ticket: str, **more: object) -> None:
    assert isinstance(w.deliver(ticket, A, message=text_of(ticket), **more), Parked)


@pytest.fixture
def w(store: Store) -> Worker:
    w = Worker(store)
    assert isinstance(w.deliver("first.n", A), Admitted)
    parked(w, "second.n")
    return w


def release(w: Worker, ticket: str = "first.n", *, mark: str = "m", queue: str = "q", **more: object) -> Released:
    fence = w.running.pop(ticket)
    outcome = w.store.release(ticket, w.name, fence, taking=taking(mark, queue), **more)  # type: ignore[arg-type]
    assert isinstance(outcome, Released)
    return outcome


def handed(w: Worker, ticket: str = "first.n") -> Handed:
    """What the release of this one brings, which is known to the worker from now on."""
    found = release(w, ticket).handed
    assert found is not None
    w.running[found.ticket] = found.admitted.fence
    w.fields[found.ticket] = found.delivery[0].decode()
    return found


def fetched(w: Worker) -> Fetched:
    found = w.post.fetch(w.name, 1)
    assert found is not None
    return found[0]


def unacked(store: Store, worker: str = "w1") -> dict[str, bytes]:
    return unacked_by(store, worker)


def alarm_of(store: Store, what: str, ticket: str) -> float | None:
    rings: float | None = raw_client(store).zscore(f"{store.prefix}alarms", f"{what}|{ticket}")
    return rings


def test_the_next_in_line_runs_on_the_worker_that_released(store: Store, clock: Clock, w: Worker) -> None:
    parked(w, "third.n")
    clock.pass_(3)
    found = handed(w)
    fence = found.admitted.fence
    assert (found.ticket, found.delivery) == ("second.n", (f"g{fence}.m".encode(), 1, text_of("second.n")))
    assert found.admitted.waits[0].seconds == pytest.approx(3, abs=0.001)
    assert [field_of(store, "second.n", name) for name in ("state", "worker", "fence")] == ["running", "w1", str(fence)]
    assert holders(store, "a") == {"second.n"}
    assert ready_in(store) == []
    assert unacked(store) == {f"g{fence}.m": b"q\nq\nsecond.n\n" + text_of("second.n")}
    assert store.held_by("w1") == {"second.n": fence}
    assert audit(store) == []
    wind_up(clock, w)


def test_one_is_handed_over_and_the_others_go_through_their_queue(store: Store, clock: Clock) -> None:
    w = Worker(store)
    w.deliver("big.n", c("a", 2, weight=2))
    for ticket in ("one.n", "two.n"):
        w.deliver(ticket, c("a", 2), message=text_of(ticket))
    assert handed(w, "big.n").ticket == "one.n"
    assert ready_in(store) == ["two.n"]
    wind_up(clock, w)


@pytest.mark.parametrize(("mark", "queue"), [("", "q"), ("m", "other")], ids=["not-wanted", "not-consumed"])
def test_nothing_is_handed_over_that_the_worker_did_not_ask_for(
    store: Store, clock: Clock, w: Worker, mark: str, queue: str
) -> None:
    assert release(w, mark=mark, queue=queue).handed is None
    assert ready_in(store) == ["second.n"]
    assert unacked(store) == {}
    wind_up(clock, w)


def test_nothing_is_handed_over_from_a_queue_that_is_consumed_without_acknowledgement(
    store: Store, clock: Clock, w: Worker
) -> None:
    args = taking("m")
    args[3] = "1"
    outcome = store.release("first.n", "w1", w.running.pop("first.n"), taking=args)
    assert isinstance(outcome, Released)
    assert outcome.handed is None
    wind_up(clock, w)


def test_nobody_passes_one_who_was_granted_before_and_is_not_fetched_yet(store: Store, clock: Clock, w: Worker) -> None:
    w.deliver("other.n", c("b", 1))
    w.deliver("before.n", c("b", 1), message=text_of("before.n"))
    release(w, "other.n", mark="")
    assert release(w).handed is None
    assert ready_in(store) == ["before.n", "second.n"]
    wind_up(clock, w)


@pytest.mark.parametrize("key", ["q", "q\x06\x163"], ids=["first-step", "last-step"])
def test_nobody_passes_what_is_in_the_queue(store: Store, clock: Clock, w: Worker, key: str) -> None:
    """Else those who wait for one limit, one after the other, would keep all others waiting."""
    w.post.publish("q", key, b"1")
    assert release(w).handed is None
    assert ready_in(store) == ["second.n"]
    w.post.acknowledge("w1", [one.field for one in w.post.fetch("w1", 1, flags="") or ()])
    wind_up(clock, w)


def test_a_busy_worker_leaves_what_was_granted_just_now_to_one_that_has_a_place(
    store: Store, clock: Clock, w: Worker
) -> None:
    release(w, mark="")
    bell = f"{store.prefix}call:q"
    raw_client(store).delete(bell)
    assert w.post.fetch("w1", 2, flags="rb") == []
    assert raw_client(store).exists(bell), "somebody else is called"
    clock.pass_(1)
    assert [one.text for one in w.post.fetch("w1", 2, flags="rb") or ()] == [text_of("second.n")]
    store.leave("w1")
    wind_up(clock, Worker(store, "w2"))


def test_a_worker_that_is_taken_for_dead_is_handed_nothing(store: Store, clock: Clock, w: Worker) -> None:
    other = Worker(store, "w2")
    for i in range(2):
        w.deliver(f"more{i}.n", c("b", 5))
    fence = w.running["more1.n"]
    w.deliver("waits.n", c("b", 2), message=text_of("waits.n"))
    for _ in range(6):
        clock.pass_(2.5)
        store.beat("w2")
    assert store.sweep("w2", batch=1).dead == ("w1",)
    assert store.sweep("w2", batch=1).after.more, "it is being buried"
    outcome = store.release("more1.n", "w1", fence, taking=taking("m"))
    assert isinstance(outcome, Released)
    assert outcome.handed is None
    assert ready_in(store) != []
    sweep_all(store)
    wind_up(clock, other)


def test_a_message_that_celery_would_put_on_its_timer_is_not_handed_over(store: Store, clock: Clock) -> None:
    w = Worker(store)
    w.deliver("first.n", A)
    w.deliver("timed.n", A, message=b'{"eta": "2026-11-17T10:00:00"}')
    assert release(w).handed is None
    assert ready_in(store) == ["timed.n"]
    wind_up(clock, w)


# -- acknowledged in the same step ----------------------------------------------------------------------------------


def test_deliveries_are_acknowledged_with_the_release(store: Store, clock: Clock, w: Worker) -> None:
    w.post.publish("q", "q", b"1")
    w.post.publish("q", "q", b"2")
    one, two = [one.field for one in w.post.fetch("w1", 2) or ()]
    release(w, mark="", acked=[one])
    assert unacked(store).keys() == {two}
    w.post.acknowledge("w1", [two])
    wind_up(clock, w)


def test_a_stale_release_acknowledges_and_hands_over_nothing(store: Store, clock: Clock, w: Worker) -> None:
    w.post.publish("q", "q", b"1")
    one = fetched(w)
    stale = w.running["first.n"] - 1
    assert store.release("first.n", "w1", stale, acked=[one.field], taking=taking("m")) == Stale()
    assert unacked(store).keys() == {one.field}
    assert line_at(store, "a") == ["second.n"]
    release(w, acked=[one.field], mark="")
    wind_up(clock, w)


def test_a_repeated_release_hands_over_nobody_else(store: Store, clock: Clock, w: Worker) -> None:
    parked(w, "third.n")
    fence = w.running["first.n"]
    found = handed(w)
    assert store.release("first.n", "w1", fence, taking=taking("m")) == Stale()
    assert unacked(store).keys() == {found.delivery[0].decode()}
    assert line_at(store, "a") == ["third.n"]
    wind_up(clock, w)


@pytest.mark.leaves_traces
def test_a_release_of_what_can_not_be_read_acknowledges_nothing(store: Store, w: Worker) -> None:
    w.post.publish("q", "q", b"1")
    one = fetched(w)
    fence = w.running["first.n"]
    overwrite(store, "first.n", b"running\tw1\t%d\tnonsense" % fence)
    outcome = store.release("first.n", "w1", fence, acked=[one.field, "?g1.m"], taking=taking("m"))
    assert isinstance(outcome, Corrupt)
    assert unacked(store).keys() == {one.field}
    assert line_at(store, "a") == ["second.n"]


@pytest.mark.parametrize("verb", ["acknowledge", "fetch", "release"])
@pytest.mark.parametrize("asked", [True, False], ids=["asked", "plain"])
def test_a_granted_ticket_that_is_dropped_frees_its_slots_where_that_is_asked(
    store: Store, clock: Clock, w: Worker, verb: str, asked: bool
) -> None:
    """One that was admitted is acknowledged plainly: the scripts need not look what became of it."""
    parked(w, "third.n")
    w.deliver("more.n", c("b", 1))
    release(w, mark="")
    one = fetched(w)
    acked = [f"?{one.field}" if asked else one.field]
    if verb == "acknowledge":
        w.post.acknowledge("w1", acked)
    elif verb == "fetch":
        w.post.fetch("w1", 1, acked=acked, queue="nothing")
    else:
        release(w, "more.n", acked=acked, mark="")
    assert one.field not in unacked(store)
    assert holders(store, "a") == ({"third.n"} if asked else {"second.n"})
    live_on(clock, 6, w)  # a grant that nobody picks up comes to its end
    wind_up(clock, w)


def test_what_runs_keeps_its_slots_though_its_delivery_is_asked_about(store: Store, clock: Clock, w: Worker) -> None:
    found = handed(w)
    w.post.acknowledge("w1", ["?" + found.delivery[0].decode()])
    assert unacked(store) == {}
    assert holders(store, "a") == {"second.n"}
    wind_up(clock, w)


def test_one_that_never_came_to_the_gate_is_dropped_with_its_slots(store: Store, clock: Clock, w: Worker) -> None:
    parked(w, "third.n")
    found = handed(w)
    assert release(w, "second.n", mark="", back=True).kept is False
    assert field_of(store, "second.n", "state") == "away"
    assert holders(store, "a") == {"third.n"}
    w.post.acknowledge("w1", ["?" + found.delivery[0].decode()])
    assert raw_client(store).exists(f"{store.prefix}task:second") == 0
    del w.fields["second.n"]
    wind_up(clock, w)


def test_one_that_waits_asks_like_any_other_when_it_comes(store: Store, clock: Clock, w: Worker) -> None:
    parked(w, "third.n")
    handed(w)
    release(w, "second.n", mark="", back=True)
    parked(w, "second.n")
    assert line_at(store, "a") == ["second.n"], "in its old place; third.n has been granted meanwhile"
    assert unacked(store) == {}
    wind_up(clock, w)


# -- given back, and not begun --------------------------------------------------------------------------------------


def test_what_is_given_back_is_granted_until_it_is_picked_up(
    store: Store, clock: Clock, policy: Policy, w: Worker
) -> None:
    """The answer was lost: nobody knows of it, and the one who finds it in its deliveries gives it back."""
    found = handed(w)
    w.post.requeue("w1", [found.delivery[0].decode()], "front")
    assert field_of(store, "second.n", "state") == "granted"
    assert holders(store, "a") == {"second.n"}
    assert store.held_by("w1") == {}
    assert alarm_of(store, "grant", "second.n") == clock.now + policy.grant_timeout * 1e6
    assert store.release("second.n", "w1", found.admitted.fence) == Stale()
    w.running.clear()
    w.fields.clear()
    assert w.pick_up(A) == ["second.n"]
    wind_up(clock, w)


def test_what_runs_under_another_delivery_runs_on(store: Store, clock: Clock, w: Worker) -> None:
    """A copy of it, fetched as a granted ticket's, goes back while another runs."""
    release(w, mark="")
    one = fetched(w)
    assert isinstance(w.deliver("second.n", A, field=one.field, late=True), Admitted)
    w.post.requeue("w1", [one.field], "front")
    assert field_of(store, "second.n", "state") == "running"
    wind_up(clock, w)


def test_a_spare_goes_on_when_the_first_is_given_back(store: Store, clock: Clock, w: Worker) -> None:
    found = handed(w)
    w.deliver("second.n", A, message=text_of("second.n"), field="", queue="q")
    assert field_of(store, "second.n", "kept") == "spare"
    w.post.requeue("w1", [found.delivery[0].decode()], "front")
    assert ready_in(store) == ["second.n"]
    assert audit(store) == []
    w.running.clear()
    w.fields.clear()
    wind_up(clock, w)


# -- the worker dies ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("late", [True, False], ids=["late", "early"])
@pytest.mark.parametrize("acked", [True, False], ids=["acknowledged", "not-acknowledged"])
def test_the_worker_dies_after_a_hand_over(store: Store, clock: Clock, policy: Policy, late: bool, acked: bool) -> None:
    """Its place is remembered for as long as its message may come again. Of one that nobody had asked about, early or
    late, its delivery tells whether it was acknowledged."""
    w, other = Worker(store), Worker(store, "w2")
    w.deliver("first.n", A)
    w.deliver("second.n", A, message=text_of("second.n"), late=late)
    found = handed(w)
    if acked:
        w.post.acknowledge("w1", [found.delivery[0].decode()])
    while not sweep_all(store):
        clock.pass_(2.5)
        store.beat("w2")
    assert field_of(store, "second.n", "state") == "away"
    assert holders(store, "a") == set()
    patience = 2 * policy.lease if acked and not late else policy.place_ttl
    assert alarm_of(store, "forget", "second.n") == clock.now + patience * 1e6
    if not acked:
        assert other.pick_up(A) == ["second.n"]
    wind_up(clock, other)


def test_the_worker_leaves_after_a_hand_over(store: Store, clock: Clock, w: Worker) -> None:
    other = Worker(store, "w2")
    handed(w)
    store.leave("w1")
    assert field_of(store, "second.n", "state") == "away"
    assert other.pick_up(A) == ["second.n"]
    wind_up(clock, other)
