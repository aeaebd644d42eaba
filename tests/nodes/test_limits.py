"""Limits on two worker nodes of two places each, so that a limit of three holds only if it counts across both."""

from __future__ import annotations

import pytest
from celery import chain, chord, group

from celery_limits import Concurrency
from tests.nodes.play import WITHIN, Play
from tests.nodes.tasks import gather, one, three, two, unlimited
from tests.waiting import wait_until

pytestmark = pytest.mark.long


def test_nodes_answer_as_pytest_celery_asks_them(play: Play) -> None:
    assert len(play.setup) == 4
    assert play.setup.ready(control=True, docker=True)
    answers = play.app.control.ping(timeout=WITHIN, limit=2)
    assert {name for answer in answers for name in answer} == {node.hostname() for node in play.setup.worker_cluster}
    for node in play.setup.worker_cluster:
        processes = node.get_running_processes_info(["pid", "cmdline"])
        assert any(node.worker_name in part for process in processes for part in process["cmdline"] or ())


def test_never_over_and_exactly_full_across_nodes(play: Play) -> None:
    result = group(three.si("k", "go") for _ in range(9)).apply_async()

    started = play.wait_started("k", 3)
    play.wait_parked("k", 4)
    # A node has two places: three at once are on both.
    assert len({entry.hostname for entry in started}) == 2

    play.open("go")
    assert result.get(timeout=WITHIN) == ["go"] * 9
    assert play.peaks() == {"k": 3}
    play.wait_quiet()


@pytest.mark.parametrize("lease", [8.0])
def test_slot_of_a_killed_node_is_taken_over_until_it_comes_back(play: Play) -> None:
    one.delay("k", "first")
    (first,) = play.wait_started("k")
    second = one.delay("k", "second")
    play.wait_parked("k", 1)

    killed = play.node_of(first)
    play.kill(killed)
    taken_over = play.wait_started("k", 2)[1]
    assert (taken_over.name, taken_over.task_id) == ("second", second.id)
    assert taken_over.hostname != first.hostname

    play.open("second")
    assert second.get(timeout=WITHIN) == "second"
    assert play.peaks() == {"k": 1}
    play.wait_quiet()

    killed.restart()
    result = group(three.si("again", "go") for _ in range(9)).apply_async()
    assert killed.hostname() in {entry.hostname for entry in play.wait_started("again", 3)}
    play.open("go")
    assert result.get(timeout=WITHIN) == ["go"] * 9
    play.wait_quiet()


def test_node_that_is_told_to_stop_finishes_before_the_other_goes_on(play: Play) -> None:
    one.delay("k", "first")
    (first,) = play.wait_started("k")
    second = one.delay("k", "second")
    play.wait_parked("k", 1)

    node = play.node_of(first)
    node.kill("SIGTERM")
    node.assert_log_exists("Warm shutdown")
    play.open("first", "second")
    assert second.get(timeout=WITHIN) == "second"

    assert [(entry.what, entry.name) for entry in play.entries()] == [
        ("start", "first"),
        ("end", "first"),
        ("start", "second"),
        ("end", "second"),
    ]
    wait_until(lambda: node.container.reload() or node.container.status == "exited", "the node ends", within=WITHIN)
    play.wait_quiet()


def test_revoking_a_parked_task_lets_the_next_one_take_its_place(play: Play) -> None:
    first = one.delay("k", "first")
    play.wait_started("k")
    second = one.delay("k", "second")
    play.wait_parked("k", 1)
    third = one.delay("k", "third")
    play.wait_parked("k", 2)

    second.revoke()
    play.wait_state(second, "REVOKED")
    assert play.limits.status("k").waiting == 1

    play.open("first", "second", "third")
    assert [result.get(timeout=WITHIN) for result in (first, third)] == ["first", "third"]
    assert [entry.name for entry in play.starts("k")] == ["first", "third"]
    play.wait_quiet()


def test_chord_of_limited_tasks_completes(play: Play) -> None:
    result = chord(two.si("k", f"part-{n}") for n in range(5))(gather.s())
    play.wait_started("k", 2)
    play.wait_parked("k", 1)

    names = [f"part-{n}" for n in range(5)]
    play.open(*names)
    assert result.get(timeout=WITHIN) == names
    assert play.peaks() == {"k": 2}
    play.wait_quiet()


def test_every_step_of_a_canvas_keeps_its_limits(play: Play) -> None:
    alone = [Concurrency("alone", 1)]
    first = unlimited.si("alone", "one by one").set(limits=alone)
    result = (group(chain(first, two.si("k", "in pairs")) for _ in range(6)) | gather.s()).apply_async()

    play.wait_started("alone", 1)
    play.wait_parked("alone", 5)
    play.open("one by one")
    play.wait_started("k", 2)
    play.wait_parked("k", 2)
    play.open("in pairs")

    assert result.get(timeout=WITHIN) == ["in pairs"] * 6
    assert play.peaks() == {"alone": 1, "k": 2}
    play.wait_quiet()
