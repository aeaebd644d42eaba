"""`list`, `show`, `explain` and `tasks`, as the real command prints them."""

from __future__ import annotations

from typing import Any

import pytest

from celery_limits import Limits
from tests.cli.command import Command
from tests.cli.counter import Counter

KEY_FIELDS = [
    *("key", "kind", "limit", "burst", "running", "waiting"),
    *("oldest_wait", "rate_now", "tokens", "resized", "paused"),
]
QUIET = {
    **dict.fromkeys(("burst", "oldest_wait", "rate_now", "tokens")),
    **dict.fromkeys(("running", "waiting"), 0),
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
    assert header == ["KEY", "KIND", "LIMIT", "RUNNING", "WAITING", "OLDEST WAIT", "RATE NOW", "STATE"]
    assert [row[:5] for row in rows] == [
        ["tenant:42", "concurrency", "3", "3", "2"],
        ["packers", "concurrency", "1", "1", "1"],
        ["warehouse", "floating", "2", "2", "1"],
        ["carrier-api", "rate", "100/m burst 2", "-", "0"],
    ]
    assert "\x1b" not in said.out


def test_list_chooses_by_pattern_and_by_those_waited_for(command: Command, busy: Counter) -> None:
    assert [row["key"] for row in command.json("list", "ten*:*")] == ["tenant:42"]
    assert [row["key"] for row in command.json("list", "--waited")] == ["packers", "tenant:42", "warehouse"]
    assert command.json("list", "nothing*") == []
    assert command("list", "nothing*").out == "No key is like 'nothing*'.\n"


def test_show_names_holders_and_waiters_in_turn(command: Command, busy: Counter) -> None:
    told = command.json("show", "tenant:42", "--timeout", "0")
    assert list(told) == [*KEY_FIELDS, "holders", "waiters"]
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
    assert said.out.startswith("tenant:42: concurrency, limit 3, 3 running, 2 waiting, the oldest for ")
    assert "Holders (1 of 3 named)" in said.out
    assert "Waiters, in turn (1 of 2 named)" in said.out
    assert ["1", "shop.ship", "ship-3", "waiting", "-"] in [row[:5] for row in said.rows]


def test_show_a_declared_key_that_nobody_uses(command: Command, limits: Limits) -> None:
    told = command.json("show", "tenant:7")
    assert (told["kind"], told["limit"], told["holders"], told["waiters"]) == ("concurrency", 3, [], [])
    assert command("show", "tenant:7").out == "tenant:7: concurrency, limit 3, nobody runs, nobody waits\n"


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
    assert command.json("explain", "nobody", code=1) == {"task_id": "nobody", "cancelled": False, "tickets": []}
    assert "not known to the limits" in command("explain", "nobody", code=1).out
    limits.cancel("nobody")
    assert command.json("explain", "nobody")["cancelled"]


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
