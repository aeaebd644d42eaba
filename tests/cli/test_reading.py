"""`list`, `show`, `explain` and `tasks`, as the real command prints them."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from celery_limits import Concurrency, Limits
from tests.cli.command import Command
from tests.cli.counter import Counter
from tests.cli.shop import build
from tests.redis_server import RedisServer

KEY_FIELDS = [
    *("key", "kind", "limit", "follows", "burst", "sizes", "running", "holding", "waiting"),
    *("oldest_wait", "rate_now", "tokens", "resized", "paused"),
    *("held", "bodies", "health", "set_by", "held_off", "forced", "pause", "resize"),
]
QUIET: dict[str, Any] = {
    **dict.fromkeys(("follows", "burst", "oldest_wait", "rate_now", "tokens", "held_off", "pause", "resize")),
    **dict.fromkeys(("running", "holding", "waiting", "held", "bodies", "forced"), 0),
    "sizes": [],
    "health": "idle",
    "set_by": "declared",
    **dict.fromkeys(("resized", "paused"), False),
}


def _by_key(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {row["key"]: row for row in rows}


@pytest.fixture
def busy(counter: Counter) -> Counter:
    """Tenant 42 has three: two ship, the third holds its tenant's slot and waits for the warehouse; two more wait."""
    for i in range(5):
        counter.bring("shop.ship", tenant=42, task_id=f"ship-{i}")
    for i in range(2):
        counter.bring("shop.pack", tenant=1, task_id=f"pack-{i}")
    return counter


def test_list_of_a_quiet_store_has_the_keys_that_are_declared_by_name(command: Command, limits: Limits) -> None:
    rows = command.json("list")
    assert [list(row) for row in rows] == [KEY_FIELDS] * 3
    assert rows == [
        {**QUIET, "key": "carrier-api", "kind": "rate", "limit": "100/m", "burst": 2, "tokens": 2},
        {**QUIET, "key": "packers", "kind": "concurrency", "limit": 1},
        {**QUIET, "key": "warehouse", "kind": "floating", "limit": 2},
    ]


def test_list_tells_what_runs_and_waits(command: Command, busy: Counter) -> None:
    busy.limits.pause("packers")
    busy.limits.resize("warehouse", 1)
    rows = _by_key(command.json("list"))
    assert {key: (row["limit"], row["running"], row["waiting"]) for key, row in rows.items()} == {
        "carrier-api": ("100/m", 0, 0),
        "packers": (1, 1, 1),
        "tenant:42": (3, 3, 2),
        "warehouse": (1, 2, 1),
    }
    assert rows["packers"]["paused"]
    assert rows["warehouse"]["resized"]
    assert rows["tenant:42"]["oldest_wait"] > 0


def test_list_as_a_plain_table(command: Command, busy: Counter) -> None:
    said = command("list", "--sort", "waiting")
    header, *rows = said.rows
    assert header == [
        *("KEY", "KIND", "LIMIT", "HELD", "BODIES", "WAITING", "OLDEST WAIT", "RATE NOW", "HEALTH", "SET BY", "STATE")
    ]
    assert [row[:6] for row in rows] == [
        ["tenant:42", "concurrency", "3", "3", "2", "2"],
        ["packers", "concurrency", "1", "1", "1", "1"],
        ["warehouse", "floating", "2", "2", "2", "1"],
        ["carrier-api", "rate", "100/m burst 2", "-", "-", "0"],
    ]
    assert "\x1b" not in said.out


def test_list_chooses_by_pattern_and_by_those_waited_for(command: Command, busy: Counter) -> None:
    assert [row["key"] for row in command.json("list", "ten*:*")] == ["tenant:42"]
    assert [row["key"] for row in command.json("list", "--waited")] == ["packers", "tenant:42", "warehouse"]
    assert command.json("list", "nothing*") == []
    assert command("list", "nothing*").out == "No keys match 'nothing*'.\n"


def test_show_names_holders_and_waiters_in_turn(command: Command, busy: Counter) -> None:
    told = command.json("show", "tenant:42", "--timeout", "0")
    assert list(told) == [*KEY_FIELDS, "groups", "holders", "waiters"]
    holders = {one["task_id"]: one for one in told["holders"]}
    assert set(holders) == {"ship-0", "ship-1", "ship-2"}
    assert (holders["ship-0"]["state"], holders["ship-0"]["worker"]) == ("running", busy.worker)
    assert holders["ship-0"]["task"] is None, "no worker was asked"
    assert (holders["ship-2"]["state"], holders["ship-2"]["task"]) == ("waiting", "shop.ship")
    assert [(one["task_id"], one["task"], one["state"]) for one in told["waiters"]] == [
        ("ship-3", "shop.ship", "waiting"),
        ("ship-4", "shop.ship", "waiting"),
    ]
    assert all(one["since"] > 0 and one["seconds"] >= 0 for one in told["holders"] + told["waiters"])


def test_show_for_people(command: Command, busy: Counter) -> None:
    said = command("show", "tenant:42", "--timeout", "0", "--page", "1")
    assert said.out.startswith("tenant:42: concurrency, limit 3, 3 slots held, 2 running, 2 waiting, the oldest for ")
    assert "Holders (1 of 3 named)" in said.out
    assert "Waiters, in turn (1 of 2 named)" in said.out
    assert ["1", "shop.ship", "ship-3", "waiting", "-"] in [row[:5] for row in said.rows]


def test_show_a_declared_key_that_nobody_uses(command: Command, limits: Limits) -> None:
    told = command.json("show", "tenant:7")
    assert (told["kind"], told["limit"], told["holders"], told["waiters"]) == ("concurrency", 3, [], [])
    assert command("show", "tenant:7").out == "tenant:7: concurrency, limit 3, no slot held, nobody waits\n"


def test_explain_one_that_waits_at_its_second_link(command: Command, busy: Counter) -> None:
    told = command.json("explain", "ship-2")
    (ticket,) = told["tickets"]
    assert (told["task_id"], told["cancelled"], ticket["task"], ticket["state"]) == (
        "ship-2", False, "shop.ship", "waiting",
    )  # fmt: skip
    assert (ticket["chain"], ticket["held"], ticket["waits_at"]) == (
        ["tenant:42", "warehouse"], ["tenant:42"], "warehouse",
    )  # fmt: skip
    assert (ticket["place"], ticket["waiting"], ticket["limit"], ticket["running"]) == (1, 1, 2, 2)
    assert {one["task_id"] for one in ticket["holders"]} == {"ship-0", "ship-1"}
    said = command("explain", "ship-2").out
    assert said.startswith("shop.ship[ship-2] waiting for ")
    assert "chain: [tenant:42] > warehouse  (holds those in brackets)" in said
    assert "waits at 'warehouse', 1 of 1 in line; 2 of 2 slots are taken, held by " in said


def test_explain_one_that_the_limits_do_not_know(command: Command, limits: Limits) -> None:
    unknown = {
        "task_id": "nobody",
        "cancelled": False,
        "tickets": [],
        "result": None,
        "superseded_by": None,
        "successor": None,
    }
    assert command.json("explain", "nobody", code=1) == unknown
    assert "no result backend is configured" in command("explain", "nobody", code=1).out
    assert "not known to the limits" in command("explain", "nobody", code=1).out
    limits.cancel("nobody")
    assert command.json("explain", "nobody")["cancelled"]


@pytest.fixture
def with_results(conf: dict[str, Any], server: RedisServer) -> Command:
    conf = {**conf, "result_backend": f"redis+socket://{server.socket}?virtual_host=1"}
    return Command(build(conf), conf)


def test_explain_tells_the_result_of_one_that_has_ended(with_results: Command) -> None:
    """`celery result` raises for a revoked task, and waits for ever for one that nobody knows."""
    backend = with_results.app.backend
    backend.mark_as_revoked("revoked-1", "expired")
    backend.mark_as_done("done-1", 7)
    for task_id, state in (("revoked-1", "REVOKED"), ("done-1", "SUCCESS"), ("nobody", "PENDING")):
        assert with_results.json("explain", task_id, code=1)["result"] == state
        assert f"{task_id}: its result is {state}" in with_results("explain", task_id, code=1).out


def test_explain_does_not_wait_for_a_result_backend_that_is_away(conf: dict[str, Any]) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        conf = {**conf, "result_backend": f"redis://127.0.0.1:{silent.getsockname()[1]}/0"}
        said = Command(build(conf), conf)("explain", "nobody", "--timeout", "0.2", code=1)
    assert "the result backend did not answer within 0.2 s" in said.out


def test_explain_names_three_holders_and_counts_the_rest(command: Command, counter: Counter) -> None:
    for i in range(6):
        counter.bring("shop.odd", tenant=1, task_id=f"odd-{i}")
    said = command("explain", "odd-5").out
    assert "5 of 5 slots are taken, held by odd-" in said
    assert said.rstrip().endswith("and 2 others")


def test_show_counts_holders_and_their_slots_apart(command: Command, counter: Counter) -> None:
    counter.bring("shop.free", tenant=1, task_id="heavy", limits=[Concurrency("gpu", 4, weight=3)])
    said = command("show", "gpu", "--timeout", "0").out
    assert said.startswith("gpu: concurrency, limit 4, 3 slots held by 1 task, 1 running, nobody waits\n")
    assert "\nHolders (1)\n" in said
    assert ["?", "heavy", "running", counter.worker, "3"] in [row[:5] for row in command("show", "gpu").rows]
    told = command.json("show", "gpu", "--timeout", "0")
    assert (told["running"], told["holding"], told["holders"][0]["weight"]) == (3, 1, 3)


def test_show_says_that_declared_sizes_differ(command: Command, counter: Counter) -> None:
    for i, limit in enumerate((3, 3, 3, 1)):
        counter.bring("shop.free", tenant=1, task_id=f"t{i}", limits=[Concurrency("shared", limit)])
    said = command("show", "shared", "--timeout", "0").out
    assert said.startswith(
        "shared: concurrency, limit 1 to 3 (declared sizes differ), 3 slots held, 3 running, 1 waiting"
    )
    assert command.json("list", "shared")[0]["sizes"] == [1, 3]
    told = command("explain", "t3").out
    assert "3 slots are taken and this task declares a limit of 1, and others declare a larger one" in told
    counter.limits.resize("shared", 2)
    assert "limit 2 (resized), 3 slots held" in command("show", "shared", "--timeout", "0").out
    assert "3 slots are taken and the limit is now 2, so that nothing starts until" in command("explain", "t3").out


def test_tasks_with_their_chains(command: Command, limits: Limits) -> None:
    told = {row["task"]: row["limits"] for row in command.json("tasks")}
    assert set(told) == {"shop.call", "shop.odd", "shop.pack", "shop.ship"}
    assert [(limit["kind"], limit["key"]) for limit in told["shop.ship"]] == [
        ("concurrency", "tenant:{tenant}"),
        ("floating", "warehouse"),
    ]
    assert told["shop.call"] == [{"kind": "rate", "key": "carrier-api", "rate": "100/m", "burst": 2, "cost": 1}]
    assert told["shop.odd"][0]["key"] == "<tests.cli.shop:_key_by_hand>"
    everything = {row["task"]: row["limits"] for row in command.json("tasks", "--all")}
    assert everything["shop.free"] == []
    assert ["shop.pack", "Concurrency('packers', 1)"] in command("tasks").rows
