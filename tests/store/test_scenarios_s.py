"""Scenarios S1 to S8 of docs/scenarios.md, as far as the store decides them: of S6 and S8 its half is here."""

from __future__ import annotations

from celery_limits.store import Store
from celery_limits.store.audit import audit
from celery_limits.store.outcomes import Admitted, Full, Joined, Lost, Parked, Released, Stale
from tests.store.actors import (
    ANY,
    Clock,
    Worker,
    c,
    field_of,
    holders,
    line_at,
    live_on,
    raw_client,
    ready_in,
    settle,
    sweep_all,
    used,
    wind_up,
)
from tests.store.interleaving import Choices, Stage, every_way
from tests.store.post import Post

A = c("a", 1)


def test_s1_a_body_ten_times_longer_than_the_lease_keeps_its_slot(store: Store, clock: Clock) -> None:
    w = Worker(store)
    w.deliver("long.n", A)
    w.deliver("next.n", A)
    assert live_on(clock, 10 * store.policy.lease, w) == []
    assert holders(store, "a") == {"long.n"}
    assert line_at(store, "a") == ["next.n"]
    assert isinstance(w.finish("long.n"), Released)
    assert w.pick_up(ANY) == ["next.n"]
    wind_up(clock, w)


def test_s2_seen_full_then_released_then_parked_runs_in_every_merge(store: Store, clock: Clock) -> None:
    frozen = clock.now

    def scene(choices: Choices) -> None:
        raw_client(store).flushall()
        clock.now = frozen
        w1, w2 = Worker(store, "w1"), Worker(store, "w2")
        w1.deliver("a.n", A)

        def b(gated: Store) -> None:
            seen = gated.admit("b.n", (A,), "w2", delivery="d1", queue="q")
            if isinstance(seen, Full):  # the message is fetched only now: that is the gap that a release falls into
                seen = gated.admit("b.n", (A,), "w2", delivery="d1", message=b"m", queue="q")
            if isinstance(seen, Admitted):
                w2.running["b.n"] = seen.fence

        def a(gated: Store) -> None:
            gated.release("a.n", "w1", w1.running.pop("a.n"))

        with Stage(store, a=a, b=b) as stage:
            stage.play(choices)
        assert w2.running or w2.pick_up(ANY) == ["b.n"], "b runs, and nothing had to time out for it"
        assert clock.now - frozen < 100
        assert audit(store) == []
        wind_up(clock, w2, w1)

    assert every_way(scene) == 3


def test_s3_a_lapsed_worker_that_gives_back_waits_and_touches_nobody(store: Store, clock: Clock) -> None:
    w1, w2 = Worker(store, "w1"), Worker(store, "w2")
    w1.deliver("a.n", A, late=True)
    assert live_on(clock, 15, w2) == ["w1"]
    assert isinstance(w2.deliver("b.n", A), Admitted)

    assert isinstance(w1.finish("a.n", back=True), Stale)
    assert holders(store, "a") == {"b.n"}
    assert isinstance(w2.deliver("a.n", A, late=True), Parked), "redelivered, it waits"
    assert wind_up(clock, w2, w1) == ["a.n"]


def test_s4_releasing_twice_makes_room_once(store: Store, clock: Clock) -> None:
    w, three = Worker(store), c("three", 3)
    for i in range(9):
        w.deliver(f"t{i}.n", three)
    fences = dict(w.running)
    for _ in range(2):
        for ticket, fence in fences.items():
            store.release(ticket, w.name, fence)
    w.running.clear()
    assert holders(store, "three") == {"t3.n", "t4.n", "t5.n"}
    assert line_at(store, "three") == ["t6.n", "t7.n", "t8.n"]
    assert wind_up(clock, w) == [f"t{i}.n" for i in range(3, 9)]


def test_s4_cancelling_three_granted_holders_twice_starts_three_waiters(store: Store, clock: Clock) -> None:
    w, three = Worker(store), c("three", 3)
    for i in range(9):
        w.deliver(f"t{i}.n", three)
    for ticket in list(w.running):
        w.finish(ticket)
    assert holders(store, "three") == {"t3.n", "t4.n", "t5.n"}
    for _ in range(2):
        for i in (3, 4, 5):
            store.cancel(f"t{i}")
    settle(store, ["t3.n", "t4.n", "t5.n"])
    assert holders(store, "three") == {"t6.n", "t7.n", "t8.n"}
    assert ready_in(store) == ["t6.n", "t7.n", "t8.n"]
    wind_up(clock, w)


def _life_of_a_task(store: Store, ledger: list[str], late: bool) -> None:
    """What a worker does with one delivery: acknowledge before or after, and release in between."""
    outcome = store.admit("t.n", (A,), "mortal", delivery="d1", message=b"m", queue="q", late=late)
    assert isinstance(outcome, Admitted)
    if not late:
        ledger.append("ack")
    ledger.append("body")
    store.release("t.n", "mortal", outcome.fence)
    if late:
        ledger.append("ack")


def test_s5_wherever_the_worker_dies_the_slot_is_free_after_one_recovery(store: Store, clock: Clock) -> None:
    gates = set()

    def scene(choices: Choices) -> None:
        raw_client(store).flushall()
        late = choices.pick([True, False])
        ledger: list[str] = []
        Worker(store, "mortal")
        survivor = Worker(store, "survivor")
        with Stage(store, mortal=lambda gated: _life_of_a_task(gated, ledger, late)) as stage:
            stage.open_gate("mortal")
            survivor.deliver("next.n", A)
            gates.add(stage.play_until_crash(choices, "mortal"))

        assert live_on(clock, store.policy.lease + 3, survivor) == ["mortal"]
        survivor.pick_up(ANY)
        assert survivor.running.keys() == {"next.n"}, "the slot was free for the next within one recovery"
        survivor.finish("next.n")
        if "ack" not in ledger:  # the broker still has it
            assert isinstance(survivor.deliver("t.n", A, late=late), Admitted)
            survivor.finish("t.n")
        assert audit(store) == []
        assert holders(store, "a") == set()
        wind_up(clock, survivor)

    every_way(scene)
    assert gates == {None, "after admit", "before release", "after release"}


def test_s5_a_message_of_the_store_survives_its_worker_at_every_gate(store: Store, clock: Clock) -> None:
    """Taken from the store, acknowledged late: it must run again wherever its worker dies, and never beside itself."""

    def scene(choices: Choices) -> None:
        raw_client(store).flushall()
        Worker(store, "mortal")
        survivor = Worker(store, "survivor")
        survivor.deliver("first.n", A)
        survivor.deliver("t.n", A, late=True)
        survivor.finish("first.n")
        ended: list[str] = []

        def mortal(gated: Store) -> None:
            (one,) = Post(gated).fetch("mortal", 1) or []
            admitted = gated.admit("t.n", (A,), "mortal", delivery="d2", field=one.field, queue="q", late=True)
            assert isinstance(admitted, Admitted)
            gated.release("t.n", "mortal", admitted.fence)
            Post(gated).acknowledge("mortal", [one.field])
            ended.append("t.n")

        with Stage(store, mortal=mortal) as stage:
            gate = stage.play_until_crash(choices, "mortal")
        live_on(clock, store.policy.lease + 3, survivor)
        again = survivor.pick_up(ANY, late=True)
        acknowledged = gate in (None, "after acknowledge")
        assert again == ([] if acknowledged else ["t.n"])
        assert audit(store) == []
        wind_up(clock, survivor)

    assert every_way(scene) == 9


def test_s6_twenty_rounds_of_shutdown_leave_a_limit_of_three_at_three(store: Store, clock: Clock) -> None:
    three = c("three", 3)
    for round_ in range(20):
        w = Worker(store, f"w{round_}")
        for i in range(5):
            w.deliver(f"t{i}.n", three, late=True)
        w.pick_up(ANY, late=True)
        assert len(w.running) == used(store, "three") == 3
        for ticket in list(w.running)[: round_ % 4]:
            w.finish(ticket, back=True)
        while store.leave(w.name).more:
            pass
    last = Worker(store, "last")
    for i in range(5):
        last.deliver(f"t{i}.n", three, late=True)
    last.pick_up(ANY, late=True)
    assert len(last.running) == used(store, "three") == 3
    wind_up(clock, last)


def test_s7_a_release_from_the_dead_frees_nobody(store: Store, clock: Clock) -> None:
    w1, w2 = Worker(store, "w1"), Worker(store, "w2")
    w1.deliver("a.n", A)
    w2.deliver("b.n", A)
    w2.deliver("c.n", A)
    assert live_on(clock, 12, w2) == ["w1"]
    assert w2.pick_up(ANY) == ["b.n"]
    for _ in range(11):  # naive: a limit of 1 reached 11
        assert isinstance(store.release("a.n", "w1", w1.running["a.n"]), Stale)
    assert holders(store, "a") == {"b.n"}
    assert line_at(store, "a") == ["c.n"]
    w1.running.clear()
    assert wind_up(clock, w2) == ["c.n"]


def test_s7_one_ticket_admitted_again_elsewhere_is_not_released_by_its_first_worker(store: Store, clock: Clock) -> None:
    w1, w2 = Worker(store, "w1"), Worker(store, "w2")
    w1.deliver("a.n", A, late=True)
    assert live_on(clock, 12, w2) == ["w1"]
    w2.deliver("a.n", A, late=True)
    w2.deliver("b.n", A)
    assert isinstance(w1.finish("a.n"), Stale)
    assert field_of(store, "a.n", "worker") == "w2"
    assert holders(store, "a") == {"a.n"}
    assert wind_up(clock, w2) == ["b.n"]


def test_s8_a_lapsed_worker_learns_it_and_can_join_again(store: Store, clock: Clock) -> None:
    w1, w2 = Worker(store, "w1"), Worker(store, "w2")
    w1.deliver("a.n", A)
    live_on(clock, 12, w2)
    assert isinstance(store.admit("b.n", (A,), "w1", delivery="d", message=b"m"), Lost)
    assert w1.post.fetch("w1", 1) is None
    assert isinstance(store.beat("w1"), Joined)
    assert isinstance(w1.deliver("b.n", A), Admitted)
    sweep_all(store)
    w1.running.pop("a.n")
    wind_up(clock, w1, w2)
