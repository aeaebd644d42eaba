"""What the pages show, what `/api/…` returns, and what the actions do."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest
from starlette.testclient import TestClient

from celery_limits import Limits
from tests.cli.command import Command
from tests.cli.counter import Counter

PAGES = ("/", "/keys", "/declared", "/workers", "/queues", "/audit", "/audit?run=1")
ODD = ("<script>alert(1)</script>", "a/b", "x\x1b[2Jy", "\u202eevil", "100%", "a?b#c", "k&amp;", '"quoted"', "é/ü")


@pytest.mark.parametrize("path", PAGES)
def test_every_page_answers_in_a_quiet_store(page: TestClient, path: str) -> None:
    answer = page.get(path)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "<h1" in answer.text


@pytest.mark.parametrize("path", [*PAGES, "/keys/packers", "/keys/tenant:42", "/tasks/pack-1", "/tasks/ship-2"])
def test_every_page_answers_in_a_busy_store(page: TestClient, busy: Counter, path: str) -> None:
    busy.limits.pause("carrier-api", seconds=60, reason="429")
    busy.limits.resize("warehouse", 1)
    assert page.get(path).status_code == 200


def test_the_overview_says_how_it_is_in_a_sentence(page: TestClient, busy: Counter) -> None:
    text = page.get("/").text
    assert "3 keys at capacity, longest wait" in text
    assert 'href="/keys/packers"' in text


def test_the_keys_come_worst_first_and_are_filtered(page: TestClient, busy: Counter) -> None:
    busy.limits.pause("carrier-api")

    def shown(query: str = "") -> list[str]:
        text = page.get(f"/keys{query}").text
        return [part.split('"')[0] for part in text.split('class="key" href="/keys/')[1:]]

    assert shown()[0] == "carrier-api"
    assert set(shown()) == {"carrier-api", "packers", "tenant%3A42", "warehouse"}
    assert shown("?pattern=tenant:*") == ["tenant%3A42"]
    assert shown("?pattern=ack") == ["packers"]
    assert shown("?template=tenant:{tenant}") == ["tenant%3A42"]
    assert shown("?health=paused") == ["carrier-api"]
    assert shown("?pattern=nothing*") == []
    assert page.get("/keys?cursor=x").status_code == 400


def test_a_key_names_holders_waiters_and_changes(page: TestClient, busy: Counter) -> None:
    busy.limits.resize("packers", 1, reason="as told")
    text = page.get("/keys/packers").text
    for part in ("pack-0", "pack-1", "till@shop", "as told", "1 of 1 slots held"):
        assert part in text


def test_a_task_is_explained_link_by_link(page: TestClient, busy: Counter) -> None:
    text = page.get("/tasks/ship-2").text
    assert "Waits at" in text
    assert text.index("tenant:42") < text.index("waits here for")
    assert "ship-0" in text, "who is in the way"
    assert "do not know this task" in page.get("/tasks/nobody").text


def test_what_is_declared_and_in_which_order(page: TestClient, limits: Limits) -> None:
    text = page.get("/declared").text
    assert "shop.ship" in text
    assert "tenant:{tenant} before warehouse" in text
    assert "in one order" in text


def test_arguments_are_never_shown(page: TestClient, counter: Counter) -> None:
    counter.bring("shop.pack", tenant="SECRET-ARGUMENT", task_id="one")
    counter.bring("shop.pack", tenant="SECRET-ARGUMENT", task_id="two")
    for path in ("/", "/keys", "/keys/packers", "/tasks/two", "/workers", "/api/keys/packers", "/api/tasks/two"):
        assert "SECRET-ARGUMENT" not in page.get(path).text, path


@pytest.mark.parametrize("key", ODD)
def test_odd_keys_are_escaped_and_can_be_steered(page: TestClient, limits: Limits, key: str) -> None:
    limits.store.resize(key, 5)
    path = f"/keys/{quote(key, safe='')}"
    for where in ("/", "/keys", path):
        text = page.get(where).text
        assert "<script>alert" not in text
        assert "\x1b" not in text
        assert "\u202e" not in text
    assert page.get(f"/api{path}").json()["key"] == key
    answer = page.post(f"{path}/pause", data={"reason": "<b>why</b>"}, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, f"{path}?done=pause")
    assert limits.status(key).paused
    assert "<b>why</b>" not in page.get(path).text


def test_a_key_that_does_not_exist_suggests_those_near(page: TestClient, busy: Counter) -> None:
    answer = page.get("/keys/packer")
    assert answer.status_code == 404
    assert 'href="/keys/packers"' in answer.text
    assert page.get("/api/keys/packer").json()["error"]["kind"] == "UnknownKey"
    assert page.post("/keys/packer/pause").status_code == 404
    assert not busy.limits.status("packer").known


# -- as the command line says it -------------------------------------------------------------------------------------


def _steady(data: Any) -> Any:
    """Without what time changes between two looks."""
    moving = ("oldest_wait", "seconds", "estimate", "due_in", "rate_now")
    if isinstance(data, dict):
        return {name: _steady(value) for name, value in data.items() if name not in moving}
    return [_steady(one) for one in data] if isinstance(data, list) else data


@pytest.mark.parametrize(
    ("path", "arguments"),
    [
        ("keys", ("list",)),
        ("keys/packers", ("show", "packers")),
        ("tasks/ship-2", ("explain", "ship-2")),
        ("declared", ("tasks",)),
        ("changes", ("changes",)),
        ("audit", ("audit",)),
    ],
)
def test_the_api_returns_what_the_command_prints(
    page: TestClient, busy: Counter, command: Command, path: str, arguments: tuple[str, ...]
) -> None:
    busy.limits.pause("packers", reason="to be told")
    answer = page.get(f"/api/{path}")
    assert answer.headers["content-type"] == "application/json"
    assert _steady(answer.json()) == _steady(command.json(*arguments))


def test_workers_queues_and_report_for_programs(page: TestClient, busy: Counter) -> None:
    (worker,) = page.get("/api/workers").json()
    assert (worker["worker"], worker["alive"], worker["running"]) == (busy.worker, True, 3)
    assert [queue["queue"] for queue in page.get("/api/queues").json()] == ["celery"]
    assert "tasks wait for limits" in page.get("/api/report").json()["report"]
    assert page.get("/api/nothing").json()["error"]["kind"] == "NotFound"


# -- actions ---------------------------------------------------------------------------------------------------------


def test_actions_do_what_the_commands_do_and_are_recorded(page: TestClient, busy: Counter) -> None:
    limits = busy.limits
    page.post("/keys/packers/resize", data={"size": "2", "for": "1h", "reason": "more"})
    assert (limits.status("packers").size, limits.status("packers").held) == (2, 2)
    page.post("/keys/packers/reset")
    page.post("/keys/packers/pause", data={"for": "10m"})
    assert limits.status("packers").paused
    page.post("/keys/packers/resume")
    page.post("/keys/carrier-api/resize", data={"size": "5/s", "burst": "9"})
    assert (limits.status("carrier-api").limit, limits.status("carrier-api").burst) == ("5/s", 9)
    page.post("/tasks/ship-2/run", data={"reason": "now"})
    assert [ticket.state for ticket in limits.explain("ship-2").tickets] == ["granted"]
    page.post("/tasks/ship-3/cancel")
    page.post("/queues/celery/pause", data={"reason": "deploy"})
    assert "deploy" in page.get("/queues").text
    page.post("/queues/celery/resume")
    assert [(c.what, c.subject, c.by, c.via) for c in limits.changes()] == [
        (what, of, "ann", "web")
        for what, of in (
            ("resume", "queue celery"), ("pause", "queue celery"), ("cancel", "task ship-3"), ("run", "task ship-2"),
            ("resize", "carrier-api"), ("resume", "packers"), ("pause", "packers"), ("reset", "packers"),
            ("resize", "packers"),
        )
    ]  # fmt: skip


def test_hold_off_closes_a_key_for_a_time(page: TestClient, busy: Counter) -> None:
    answer = page.post("/keys/packers/hold-off", data={"for": "30s"})
    assert answer.status_code == 200
    assert page.get("/api/keys/packers").json()["health"] in ("held off", "paused")
    assert page.post("/keys/packers/hold-off").status_code == 400


def test_a_program_may_ask_for_json(page: TestClient, busy: Counter) -> None:
    accept = {"accept": "application/json"}
    told = page.post("/keys/packers/resize", json={"size": 3}, headers=accept).json()
    assert (told["key"], told["limit"], told["set_by"]) == ("packers", 3, "resized")
    refused = page.post("/keys/packers/resize", json={"size": "many"}, headers=accept)
    assert (refused.status_code, refused.json()["error"]["kind"]) == (400, "BadSize")


@pytest.mark.parametrize(
    ("path", "data"),
    [
        ("/keys/packers/resize", {"size": "x"}),
        ("/keys/packers/resize", {"size": "-1"}),
        ("/keys/packers/resize", {}),
        ("/keys/packers/pause", {"for": "never"}),
        ("/keys/packers/pause", {"reason": "x" * 501}),
        ("/tasks/nobody/run", {}),
        ("/keys/carrier-api/resize", {"size": "5/s", "burst": "many"}),
    ],
)
def test_what_can_not_be_done_is_said_and_changes_nothing(
    page: TestClient, busy: Counter, path: str, data: dict[str, str]
) -> None:
    assert page.post(path, data=data).status_code == 400
    assert busy.limits.changes() == []


@pytest.mark.parametrize(
    "path", ["/", "/keys/packers", "/keys/packers/explode", "/tasks/x/pause", "/audit", "/api/keys"]
)
def test_there_is_no_other_action(page: TestClient, busy: Counter, path: str) -> None:
    assert page.post(path).status_code in (400, 404)


def test_looking_writes_nothing(page: TestClient, busy: Counter, limits: Limits) -> None:
    client: Any = limits.store.client

    def writes() -> int:
        told = client.info("commandstats")
        verbs = ("hset", "hdel", "zadd", "zrem", "set", "del", "lpush", "rpush", "incr", "hincrby", "ltrim", "expire")
        return sum(told.get(f"cmdstat_{verb}", {}).get("calls", 0) for verb in verbs)

    page.get("/keys")
    before = writes()
    for path in ("/", "/keys", "/keys/tenant:42", "/tasks/ship-2", "/declared", "/audit", "/api/keys"):
        page.get(path)
    # Workers are asked for the names of what they run through the broker, which binds a queue for their answers.
    assert writes() - before <= 12 * 4
    assert limits.changes() == []


def test_repair_mends_what_the_audit_finds(page: TestClient, busy: Counter) -> None:
    client: Any = busy.limits.store.client
    client.hset(f"{busy.limits.store.prefix}hold:packers", "ghost.n", "1")
    assert "holder-without-ticket" in page.get("/audit?run=1").text
    assert page.post("/audit/repair").status_code == 200
    assert page.get("/api/audit").json()["clean"]
