"""The checker is held to its word: a history with one thing wrong in it is found wrong in that, and in nothing else."""

from __future__ import annotations

import pytest

from tests.chaos.checker import check_all, outstanding
from tests.chaos.fleet import LEASE
from tests.chaos.history import read
from tests.chaos.tale import NARROW, Tale
from tests.chaos.world import size_of


def test_a_quiet_tale_is_fine(tale: Tale) -> None:
    for call in ("a", "b"):
        tale.publish(call)
        tale.live(call)
    assert tale.wrong() == {}
    assert [check.looked for check in check_all(read(tale.lines)) if check.name == "1 never over"] == [2]


# -- never over --------------------------------------------------------------------------------------------------


def two_at_once(tale: Tale, first: str = "w1@chaos") -> None:
    tale.publish("a")
    tale.publish("b")
    runs = {"a": tale.start("a", first)}
    runs["b"] = tale.start("b", "w2@chaos")
    for call, run in runs.items():
        tale.end(call, run)


def test_two_bodies_where_one_may_run(tale: Tale) -> None:
    two_at_once(tale)
    assert tale.wrong() == {"1 never over": 1}


def test_weights_count(tale: Tale) -> None:
    depot = {"depot": "1"}
    for call in ("a", "b", "c"):
        tale.publish(call, names=depot, weight=3)
    runs = {call: tale.start(call, names=depot, weight=3) for call in ("a", "b", "c")}
    for call, run in runs.items():
        tale.end(call, run)
    assert tale.wrong() == {"1 never over": sum(3 * n > size_of("depot:1", "old") for n in (1, 2, 3))}


def test_a_body_that_was_killed_ran_until_its_last_sign_of_life(tale: Tale) -> None:
    tale.publish("a")
    run = tale.start("a")
    tale.say("tick", "a", run=run)
    tale.fault("kill", "w1@chaos")
    tale.publish("b")
    tale.live("b", "w2@chaos")
    tale.live("a", "w2@chaos")
    assert tale.wrong() == {}


def test_a_body_that_outlives_its_killed_worker_counts(tale: Tale) -> None:
    tale.publish("a")
    tale.publish("b")
    run = tale.start("a")
    tale.fault("kill", "w1@chaos")
    second = tale.start("b", "w2@chaos")
    tale.say("tick", "a", run=run)
    tale.end("b", second)
    tale.live("a", "w2@chaos")
    assert tale.wrong() == {"1 never over": 1}


@pytest.mark.parametrize(("kind", "worker", "after", "over"), [
    ("stop", "w1@chaos", LEASE, 0), ("cut off", "w2@chaos", LEASE, 0),
    ("cut off", "w1@chaos", LEASE, 1), ("cut", "w2@chaos", LEASE, 1),
    ("stop", "w1@chaos", LEASE / 2, 1), ("cut off", "w2@chaos", LEASE / 2, 1), ("stop", "w4@chaos", LEASE, 1),
    ("redis away", "", LEASE, 1), ("kill", "w1@chaos", LEASE, 1),
])  # fmt: skip
def test_only_the_stated_exception_is_excused(tale: Tale, kind: str, worker: str, after: float, over: int) -> None:
    """Threads run on when they are cut off; processes are ended before their lease lapses, unless they are stopped.
    Before that nobody may be given their slots."""
    tale.publish("a")
    tale.publish("b")
    first = tale.start("a", worker if worker in ("w1@chaos", "w2@chaos") else "w1@chaos")
    tale.fault(kind, worker, 8.0)
    tale.clock += after
    second = tale.start("b", "w3@chaos")
    if kind not in ("kill", "cut"):
        tale.mend(kind, worker)
    tale.end("a", first)
    tale.end("b", second)
    assert tale.wrong() == ({"1 never over": 1} if over else {})


def test_a_worker_that_was_starved_for_longer_than_its_lease_is_as_one_that_was_stopped(tale: Tale) -> None:
    for seconds in (LEASE, LEASE / 2):
        tale.publish("a")
        tale.publish("b")
        first = tale.start("a")
        tale.clock += LEASE
        second = tale.start("b", "w2@chaos")
        tale.say("starved", worker="w1@chaos", seconds=seconds)
        tale.end("a", first)
        tale.end("b", second)
        assert tale.wrong() == ({} if seconds == LEASE else {"1 never over": 1})
        tale.clock += 1000


def test_a_raised_limit_is_in_force_while_it_is_raised(tale: Tale) -> None:
    tale.say("steers", kind="resize", key=f"tenant:{NARROW}", size=2)
    two_at_once(tale)
    tale.say("steered", kind="resize", key=f"tenant:{NARROW}")
    assert tale.wrong() == {}
    tale.clock += 1000
    two_at_once(tale)
    assert tale.wrong() == {"1 never over": 1}


def test_two_raise_it_at_once(tale: Tale) -> None:
    for size in (2, 3):
        tale.say("steers", kind="resize", key=f"tenant:{NARROW}", size=size)
    tale.say("steered", kind="resize", key=f"tenant:{NARROW}")
    two_at_once(tale)
    tale.say("steered", kind="resize", key=f"tenant:{NARROW}")
    assert tale.wrong() == {}


# -- nothing lost ------------------------------------------------------------------------------------------------


def test_a_call_that_never_ends(tale: Tale) -> None:
    tale.publish("a")
    assert tale.wrong() == {"5 nothing lost": 1}
    assert [call.name for call in outstanding(read(tale.lines))] == ["a"]


@pytest.mark.parametrize("late", [True, False])
def test_a_body_that_was_killed_comes_again_if_it_is_acknowledged_late(tale: Tale, late: bool) -> None:
    tale.publish("a", late=late)
    tale.start("a")
    assert tale.wrong() == {"5 nothing lost": 1}, "nobody was killed"
    tale.fault("kill", "w1@chaos")
    assert tale.wrong() == ({"5 nothing lost": 1} if late else {})


def test_an_early_one_that_was_not_even_begun(tale: Tale) -> None:
    tale.publish("a", late=False)
    tale.fault("kill", "w1@chaos")
    assert tale.wrong() == {"5 nothing lost": 1}
    tale.say("accepted", "a", worker="w1@chaos", id="x-1-a", child=7)
    tale.fault("kill", "w1@chaos")
    assert tale.excused() == {"about to begin, and then: kill": 1}


@pytest.mark.parametrize("child", [1, 2])
def test_only_the_process_that_was_killed_ends(tale: Tale, child: int) -> None:
    """Lines of a tale are written by process 1."""
    tale.publish("a", late=False)
    tale.start("a")
    tale.fault("kill child", "w1@chaos", child=child)
    assert tale.wrong() == ({} if child == 1 else {"5 nothing lost": 1})


def test_a_body_that_fell_silent_long_before_the_kill(tale: Tale) -> None:
    tale.publish("a", late=False)
    tale.start("a")
    tale.clock += 5
    tale.fault("kill", "w1@chaos")
    assert tale.wrong() == {"5 nothing lost": 1}


def test_a_retry_that_does_not_come(tale: Tale) -> None:
    tale.publish("a", late=False, retries=1)
    run = tale.start("a")
    tale.say("torn", "a", run=run, by="Retry")
    assert tale.wrong() == {"5 nothing lost": 1}
    tale.live("a", retries=1)
    assert tale.wrong() == {}


@pytest.mark.parametrize("pid", [1, 2])
def test_a_chord_whose_last_part_was_killed_as_it_ended(tale: Tale, pid: int) -> None:
    """Celery lets the dead keep their claim on it. One who was killed before it was complete had none."""
    tale.publish("a", members=["a.0", "a.1"])
    for member in ("a.0", "a.1"):
        tale.publish(member)
    tale.live("a.0")
    tale.live("a.1")
    tale.fault("kill child", "w1@chaos", child=pid)
    tale.live("a.1", "w2@chaos")
    assert tale.wrong().get("5 nothing lost") == (None if pid == 1 else 1)


def test_a_chord_whose_first_part_was_killed_as_it_ended(tale: Tale) -> None:
    tale.publish("a", members=["a.0", "a.1"])
    for member in ("a.0", "a.1"):
        tale.publish(member)
    tale.live("a.0")
    tale.fault("kill", "w1@chaos")
    tale.clock += 5
    tale.live("a.1", "w2@chaos")
    assert tale.wrong() == {"5 nothing lost": 1}


def test_what_was_revoked_or_may_expire_need_not_run_but_says_so(tale: Tale) -> None:
    tale.publish("a")
    tale.say("revoking", "a")
    tale.publish("b", expires=tale.clock)
    assert tale.wrong() == {"5 nothing lost": 2}
    tale.answer("a", "REVOKED", "TaskRevokedError")
    tale.answer("b", "REVOKED", "TaskRevokedError")
    assert tale.wrong() == {}
    tale.publish("c")
    tale.answer("c", "REVOKED", "TaskRevokedError")
    assert tale.wrong() == {"5 nothing lost": 1}


def test_rabbitmq_drops_what_has_expired_and_tells_nobody(tale: Tale) -> None:
    tale.publish("a", expires=tale.clock, silent=True)
    assert tale.excused() == {"expired": 1}
    tale.publish("b", expires=tale.clock + 100, silent=True)
    assert tale.wrong() == {"5 nothing lost": 1}, "it has not expired"
    tale.start("b")
    tale.clock += 100
    tale.publish("c", silent=True)
    tale.live("c")
    assert tale.wrong() == {"5 nothing lost": 1}, "it was begun"
    tale.publish("d", expires=tale.clock, silent=True)
    tale.start("d")
    tale.fault("kill", "w1@chaos")
    assert tale.wrong() == {"5 nothing lost": 1}
    assert tale.excused() == {"expired": 2}


def test_what_runs_out_of_time_says_so(tale: Tale) -> None:
    tale.publish("a", hard=True)
    tale.start("a")
    assert tale.wrong() == {"5 nothing lost": 1}
    tale.answer("a", "FAILURE", "TimeLimitExceeded")
    assert tale.wrong() == {}
    tale.publish("b")
    tale.start("b")
    tale.answer("b", "FAILURE", "TimeLimitExceeded")
    assert tale.wrong() == {"5 nothing lost": 1}


def test_twice_without_a_reason(tale: Tale) -> None:
    tale.publish("a")
    tale.live("a")
    tale.live("a", "w2@chaos")
    assert tale.wrong() == {"5 ends once": 1}


def test_twice_since_the_first_was_killed(tale: Tale) -> None:
    tale.publish("a")
    tale.start("a")
    tale.fault("kill child", "w1@chaos", child=1)
    tale.live("a", "w2@chaos")
    assert tale.excused() == {"again: kill child": 1}


@pytest.mark.parametrize("kind", ["term", "term twice"])
def test_twice_although_its_worker_had_all_the_time_to_end_it(tale: Tale, kind: str) -> None:
    tale.publish("a")
    run = tale.start("a")
    tale.fault(kind, "w1@chaos")
    tale.end("a", run)
    tale.live("a", "w2@chaos")
    assert tale.wrong() == {"5 ends once": 1}


def test_twice_although_the_first_had_long_been_acknowledged_when_its_worker_was_killed(tale: Tale) -> None:
    tale.publish("a")
    tale.live("a")
    tale.clock += 5
    tale.fault("kill", "w1@chaos")
    tale.live("a", "w2@chaos")
    assert tale.wrong() == {"5 ends once": 1}


@pytest.mark.parametrize(("before", "after", "wrong"), [(0.1, 7.0, 0), (0.1, 9.0, 1), (7.0, 0.0, 1)])
def test_twice_since_its_worker_had_no_connection(tale: Tale, before: float, after: float, wrong: int) -> None:
    """It was cut shortly before the body began; `after` that it was killed."""
    tale.publish("a")
    tale.fault("cut", "w1@chaos")
    tale.clock += before
    tale.live("a")
    tale.clock += max(after, 4)
    tale.fault("kill", "w1@chaos")
    tale.live("a", "w2@chaos")
    assert tale.wrong() == ({"5 ends once": 1} if wrong else {})


@pytest.mark.parametrize("late", [0.0, 5.0])
def test_twice_since_one_came_back_with_the_message_in_its_hands(tale: Tale, late: float) -> None:
    tale.publish("a")
    tale.fault("stop", "w1@chaos", 8.0)
    tale.clock += LEASE
    tale.live("a", "w2@chaos")
    tale.mend("stop", "w1@chaos")
    tale.clock += late
    tale.live("a", "w1@chaos")
    assert tale.wrong() == ({"5 ends once": 1} if late else {}), "later it had time to find out"


def test_twice_since_its_end_could_not_be_told(tale: Tale) -> None:
    tale.publish("a")
    run = tale.start("a")
    tale.fault("redis killed", seconds=1.0)
    tale.end("a", run)
    tale.fault("term", "w1@chaos")
    tale.say("mended", kind="redis killed", worker="", seconds=1.0)
    tale.live("a", "w2@chaos")
    assert tale.wrong() == {}


@pytest.mark.parametrize("back", [0.5, 2.0])
def test_a_lease_that_is_lost_in_two_short_silences_is_lost_in_one(tale: Tale, back: float) -> None:
    tale.fault("redis killed", seconds=2.0)
    tale.mend("redis killed", seconds=2.0)
    tale.clock += back
    tale.fault("half-open briefly", "w1@chaos", 2.0)
    tale.mend("half-open briefly", "w1@chaos", 2.0)
    tale.say("lost", worker="w1@chaos")
    assert tale.wrong() == ({} if back == 0.5 else {"workers stay": 1})


@pytest.mark.parametrize("later", [0.0, 4.0])
def test_twice_since_its_connection_was_closed_while_it_waited_for_a_thread(tale: Tale, later: float) -> None:
    """What was delivered before runs all the same, and can't be acknowledged."""
    tale.publish("a", late=False)
    tale.fault("rabbit closed", seconds=0.1)
    tale.mend("rabbit closed")
    tale.clock += later
    tale.live("a", "w2@chaos")
    tale.live("a", "w2@chaos")
    assert tale.wrong() == ({"5 ends once": 1} if later else {})


@pytest.mark.parametrize("back", [0.0, 2.0])
def test_twice_since_redis_was_away_before_its_worker_was_cut_off(tale: Tale, back: float) -> None:
    """The lease lapses the sooner, if it could not be renewed in between."""
    tale.publish("a")
    run = tale.start("a")
    tale.fault("redis killed", seconds=2.0)
    tale.end("a", run)
    tale.mend("redis killed", seconds=2.0)
    tale.clock += back
    tale.fault("cut off", "w1@chaos", 12.0)
    tale.clock += LEASE / 3
    tale.live("a", "w2@chaos")
    tale.mend("cut off", "w1@chaos", 10.0)
    assert tale.wrong() == ({"5 ends once": 1} if back else {})


@pytest.mark.parametrize("another", [True, False])
def test_twice_since_its_worker_waited_for_another_to_end(tale: Tale, another: bool) -> None:
    """Told to go, a worker may acknowledge only when all has ended; and then Redis was away."""
    tale.publish("a")
    tale.publish("b", names={"tenant": "other"})
    run = tale.start("b", names={"tenant": "other"})
    tale.fault("term", "w1@chaos")
    tale.live("a")
    tale.clock += 4 if another else 0
    tale.end("b", run)
    tale.clock += 0 if another else 4
    tale.fault("redis killed", seconds=1.0)
    tale.mend("redis killed")
    tale.live("a", "w2@chaos")
    assert tale.wrong() == ({} if another else {"5 ends once": 1})


def test_stopped_as_it_began_and_ended_when_it_came_back(tale: Tale) -> None:
    tale.publish("a", late=False)
    tale.start("a")
    tale.fault("stop", "w1@chaos", 8.0)
    tale.mend("stop", "w1@chaos", 2 * LEASE)
    tale.say("losing", worker="w1@chaos")
    assert tale.excused()["begun, and then: losing"] == 1


def test_ended_while_it_published_its_retry(tale: Tale) -> None:
    tale.publish("a", late=False, retries=1)
    run = tale.start("a")
    tale.fault("redis away", seconds=9.0)
    tale.say("retry", "a", run=run)
    tale.clock += 5
    tale.say("losing", worker="w1@chaos")
    tale.mend("redis away", seconds=4)
    assert tale.excused() == {"begun, and then: losing": 1}
    assert tale.wrong() == {}


def test_twice_although_redis_was_back_when_it_was_told_to_go(tale: Tale) -> None:
    tale.publish("a")
    tale.fault("redis killed", seconds=1.0)
    tale.say("mended", kind="redis killed", worker="", seconds=1.0)
    tale.live("a")
    tale.fault("term", "w1@chaos")
    tale.live("a", "w2@chaos")
    assert tale.wrong() == {"5 ends once": 1}
