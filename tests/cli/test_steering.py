"""`resize`, `reset`, `pause`, `resume` and `cancel`: what they change, and what they refuse."""

from __future__ import annotations

from typing import Any

import pytest

from celery_limits import LimitError, Limits
from celery_limits.store.outcomes import Admitted, Parked
from tests.cli.command import Command
from tests.cli.counter import Counter


def test_resize_lets_waiters_go_and_stays_until_reset(command: Command, counter: Counter) -> None:
    for i in range(3):
        counter.bring("shop.pack", tenant=1, task_id=f"pack-{i}")
    told = command.json("resize", "packers", "2")
    assert (told["limit"], told["running"], told["waiting"], told["resized"]) == (2, 2, 1, True)
    assert counter.limits.explain("pack-1").tickets[0].state == "granted"
    assert command.json("show", "packers", "--timeout", "0")["limit"] == 2, "a new look, the same size"
    told = command.json("reset", "packers")
    assert (told["limit"], told["running"], told["resized"]) == (1, 2, False)


def test_resize_says_what_it_did(command: Command, counter: Counter) -> None:
    said = command("resize", "packers", "4").out
    assert said == "packers: limit 4 instead of 1, until 'limits reset'; no slot held, 0 waiting\n"
    assert command("reset", "packers").out == "packers: limit as declared; no slot held, 0 waiting\n"


def test_resize_a_rate_keeps_its_burst_unless_told(command: Command, counter: Counter) -> None:
    told = command.json("resize", "carrier-api", "2/h")
    assert (told["limit"], told["burst"], told["tokens"]) == ("2/h", 2, 2)
    counter.bring("shop.call", tenant=1)  # a token that takes half an hour to come back
    assert command.json("show", "carrier-api")["tokens"] == 1
    told = command.json("resize", "carrier-api", "2/h", "--burst", "5")
    assert (told["limit"], told["burst"], told["tokens"]) == ("2/h", 5, 4)
    told = command.json("resize", "carrier-api", "0")
    assert (told["limit"], told["tokens"]) == ("0/s", 0)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("carrier-api", "5"), "'carrier-api' is a rate: write '5/s', '5/m', '5/h', '5/d' or '5/w'"),
        (("carrier-api", "5/y"), "rate '5/y' can't be read: write '10/s'"),
        (("packers", "5/m"), "'packers' is a limit of concurrency: its size is a whole number, not '5/m'"),
        (("packers", "9999999999"), "must be between 0 and 1000000000"),
        (("packers", "3", "--burst", "2"), "--burst is for rates"),
    ],
)
def test_resize_refuses_what_the_key_can_not_have(
    command: Command, limits: Limits, arguments: tuple[str, ...], why: str
) -> None:
    said = command("resize", *arguments, code=1)
    assert why in said.err
    assert why in command.json("resize", *arguments, code=1)["error"]["message"]
    assert limits.store.keys() == []


def test_pause_and_resume(command: Command, counter: Counter) -> None:
    assert command.json("pause", "packers")["paused"]
    assert isinstance(counter.bring("shop.pack", tenant=1, task_id="pack")[1], Parked)
    assert "packers: resumed; 1 slot held, 0 waiting" in command("resume", "packers").out
    assert counter.limits.explain("pack").tickets[0].state == "granted"


@pytest.mark.parametrize("verb", ["show", "resize", "reset", "pause", "resume"])
def test_a_key_that_is_not_there_suggests_those_near_and_changes_nothing(
    command: Command, counter: Counter, verb: str
) -> None:
    counter.bring("shop.ship", tenant=42)
    more = ("5",) if verb == "resize" else ()
    said = command(verb, "tenat:42", *more, code=1)
    assert "there is no key 'tenat:42'" in said.err
    assert "Did you mean 'tenant:42'?" in said.err
    error = command.json(verb, "tenat:42", *more, code=1)["error"]
    assert error["kind"] == "UnknownKey"
    assert counter.limits.store.keys() == ["tenant:42", "warehouse"]


@pytest.mark.parametrize("verb", ["show", "resize", "reset", "pause", "resume"])
def test_a_key_that_a_task_could_have_but_has_not_is_said_to_be_unused(
    command: Command, counter: Counter, verb: str
) -> None:
    more = ("5",) if verb == "resize" else ()
    assert "nobody uses 'tenant:acmee'" in command(verb, "tenant:acmee", *more).err
    counter.limits.reset("tenant:acmee")
    counter.limits.resume("tenant:acmee")
    counter.bring("shop.ship", tenant="acme")
    said = command(verb, "tenant:acmee", *more, "--json")
    assert "nobody uses 'tenant:acmee' at present. Did you mean 'tenant:acme'?" in said.err
    assert said.json["key"] == "tenant:acmee"
    assert command(verb, "tenant:acme", *more).err == ""


def test_a_key_by_hand_may_be_steered_before_it_is_used(command: Command, counter: Counter) -> None:
    assert "add --new" in command("resize", "hand:7", "0", code=1).err
    assert command.json("resize", "hand:7", "0", "--new")["limit"] == 0
    assert isinstance(counter.bring("shop.odd", tenant=7)[1], Parked)
    assert isinstance(counter.bring("shop.odd", tenant=8)[1], Admitted)


def test_cancel_ends_one_that_waits(command: Command, counter: Counter) -> None:
    counter.bring("shop.pack", tenant=1, task_id="runs")
    counter.bring("shop.pack", tenant=1, task_id="waits")
    assert command.json("cancel", "waits") == {"task_id": "waits", "ended": 1, "running": 0}
    assert counter.limits.status("packers").waiting == 0
    assert (
        "not waiting for a limit; if its message is still in a queue, the task will not start"
        in command("cancel", "waits").out
    )
    assert command.json("cancel", "runs") == {"task_id": "runs", "ended": 0, "running": 1}
    assert "'celery control terminate SIGTERM runs' stops it" in command("cancel", "runs").out
    assert counter.limits.status("packers").running == 1


@pytest.mark.parametrize("verb", [("pause",), ("resume",), ("reset",), ("resize", "5")])
def test_a_pattern_is_refused_and_says_which_keys_it_matches(command: Command, counter: Counter, verb: Any) -> None:
    """It would fit the template of a task, and be steered as a key of that very name."""
    for tenant in range(7):
        counter.bring("shop.ship", tenant=tenant)
    name, *rest = verb
    error = command.json(name, "tenant:*", *rest, code=1)["error"]
    assert error["kind"] == "Pattern"
    assert "'tenant:0', 'tenant:1'" in error["message"]
    assert error["message"].endswith("and 2 more")
    assert "no key matches it" in command(name, "tenant:9?", *rest, code=1).err
    assert not counter.limits.store.status("tenant:*").known


BAD = [
    ("k", -1, 1),
    ("k", 1.5, 1),
    ("k", True, 1),
    ("k", "fast", 1),
    ("k", "1/y", 1),
    ("k", "5/s", 0),
    ("k", "5/s", "x"),
]


@pytest.mark.parametrize(("key", "size", "burst"), [*BAD, ("k", None, 1), ("", 5, 1), (None, 5, 1), ("a\nb", 5, 1)])
def test_resize_with_bad_input_is_one_error(limits: Limits, key: Any, size: Any, burst: Any) -> None:
    with pytest.raises(LimitError, match="resize "):
        limits.resize(key, size, burst)
    assert limits.store.keys() == []
