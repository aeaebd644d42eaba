"""`audit` and `check`: exit codes for scripts, and what to do for people. Errors name the store, never its password."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import ImproperlyConfigured

from celery_limits import Concurrency, FloatingConcurrency, Limits
from tests.cli.command import Command
from tests.cli.counter import Counter
from tests.cli.shop import build
from tests.redis_server import RedisServer

NOWHERE = "redis://shop:secret@127.0.0.1:1/0"


def _task(tenant: int) -> None: ...


def _command(**conf: Any) -> Command:
    return Command(build(conf), conf)


def test_audit_of_a_sound_store(command: Command, counter: Counter) -> None:
    counter.bring("shop.pack", tenant=1)
    assert command.json("audit") == {"clean": True, "findings": []}
    assert command("audit").out == "Nothing is wrong.\n"


def test_audit_names_what_is_wrong_and_repairs_it(command: Command, counter: Counter) -> None:
    store = counter.limits.store
    counter.bring("shop.pack", tenant=1, task_id="runs")
    client: Any = store.client
    client.hset(f"{store.prefix}hold:packers", "nobody.n", 1)
    told = command.json("audit", code=1)
    assert not told["clean"]
    (finding,) = told["findings"]
    assert (finding["code"], finding["subject"], finding["repaired"]) == ("holder-without-ticket", "packers", False)
    said = command("audit", code=1).out
    assert "holder-without-ticket: packers:" in said
    assert "1 found; run with --repair to repair them" in said
    told = command.json("audit", "--repair")
    assert (told["clean"], [one["repaired"] for one in told["findings"]]) == (True, [True])
    assert command.json("audit") == {"clean": True, "findings": []}


def test_check_of_an_app_that_can_be_deployed(command: Command, limits: Limits) -> None:
    told = command.json("check")
    assert told["ok"]
    *checks, persistence = told["checks"]
    assert [(one["name"], one["ok"], one["severity"], one["problem"]) for one in checks] == [
        (name, True, "ok", None) for name in ("settings", "tasks", "deadlock", "refresh functions", "store")
    ]
    assert (persistence["name"], persistence["ok"], persistence["severity"]) == ("persistence", False, "warning")
    assert "4 of " in command("check").out


def _failed(command: Command) -> dict[str, str]:
    told = command.json("check", code=1)
    assert not told["ok"]
    return {one["name"]: one["problem"] for one in told["checks"] if one["severity"] == "error"}


def test_check_without_a_store_says_which_url_was_tried() -> None:
    command = _command(broker_url="memory://", limits_store_url=NOWHERE)
    failed = _failed(command)
    assert set(failed) == {"store"}
    assert "127.0.0.1:1/0" in failed["store"]
    assert "Start it, or set limits_store_url" in failed["store"]
    assert "secret" not in json.dumps(failed)
    assert command.json("check", "--offline")["ok"], "CI may have no Redis"


@pytest.mark.parametrize("verb", [("list",), ("show", "packers"), ("resize", "packers", "2"), ("audit",)])
def test_every_command_without_a_store_says_which_url_was_tried(verb: tuple[str, ...]) -> None:
    command = _command(broker_url="memory://", limits_store_url=NOWHERE)
    said = command(*verb, code=1)
    assert said.out == ""
    assert "the limit store redis://shop:**@127.0.0.1:1/0 failed" in said.err
    assert "limits_store_url" in said.err
    assert "secret" not in said.err
    error = command.json(*verb, code=1)["error"]
    assert error["kind"] == "StoreUnavailable"
    assert "secret" not in error["message"]


def test_an_app_without_any_redis_is_told_what_to_set() -> None:
    command = _command(broker_url="memory://")
    assert 'set limits_store_url = "redis://host:6379/0"' in command("list", code=1).err
    assert 'set limits_store_url = "redis://host:6379/0"' in _failed(command)["settings"]


def test_a_broker_url_with_a_misspelt_scheme_is_told_the_right_one() -> None:
    command = _command(broker_url="limits+reddis://localhost:6379/0")
    assert "Did you mean limits+redis://?" in command("list", code=1).err
    assert "Did you mean limits+redis://?" in _failed(command)["settings"]


def test_a_broker_url_with_a_slash_missing_is_told_how_to_write_it() -> None:
    command = _command(broker_url="limits+redis:/shop:secret@localhost:6379/0")
    for said in (command("list", code=1).err, _failed(command)["settings"]):
        assert "is not a URL; write limits+redis://host:6379/0" in said
        assert "secret" not in said
    with pytest.raises(ImproperlyConfigured, match="is not a URL"):
        command.app.tasks["shop.ship"].delay(1)


def test_check_finds_a_deadlock_and_says_how_to_end_it(conf: dict[str, Any]) -> None:
    app: Any = Celery("cycle", set_as_current=False)
    app.conf.update(conf)
    a, b = Concurrency("a", 1), Concurrency("b", 1)
    app.task(shared=False, name="one", limits=[a, b])(_task)
    app.task(shared=False, name="other", limits=[b, a])(_task)
    command = Command(app, conf)
    failed = _failed(command)
    assert "these limits can deadlock" in failed["deadlock"]
    assert "Take them in one order in all tasks" in failed["deadlock"]
    assert command("check", code=1).out.count("these limits can deadlock") == 1, "said once, although two find it"


@pytest.mark.parametrize("refresh", ["tests.cli.shop:no_such", "no.such.module:f", "tests.cli.shop:CONF"])
def test_check_finds_a_refresh_function_that_is_none(conf: dict[str, Any], refresh: str) -> None:
    app: Any = Celery("floating", set_as_current=False)
    app.conf.update(conf)
    limit = FloatingConcurrency("k", default=1, refresh=refresh, every=30)
    app.task(shared=False, name="one", limits=[limit])(_task)
    assert refresh in _failed(Command(app, conf))["refresh functions"]


def test_check_finds_a_wrong_setting(conf: dict[str, Any]) -> None:
    failed = _failed(_command(**{**conf, "limits_leese": 5}))
    assert "did you mean limits_lease?" in failed["settings"]


def test_check_finds_a_redis_that_evicts(tmp_path: Path) -> None:
    with RedisServer(maxmemory="100mb", maxmemory_policy="allkeys-lru") as server:
        failed = _failed(_command(broker_url=f"redis+socket://{server.socket}"))
    assert "set maxmemory-policy noeviction" in failed["eviction"]


def test_check_warns_of_a_redis_that_evicts_what_expires(tmp_path: Path) -> None:
    with RedisServer(maxmemory="100mb", maxmemory_policy="volatile-lru") as server:
        said = _command(broker_url=f"redis+socket://{server.socket}")("check").out
    assert "warning  eviction: this Redis evicts keys that expire when it is full" in said


def test_what_was_set_aside_is_shown_and_put_back(command: Command, counter: Counter) -> None:
    store = counter.limits.store
    client: Any = store.client
    entries = {
        "message 1": {"why": "TypeError: \x1b[31m", "queue": "shop", "message": '{"poison": 1}', "at": "1000000"},
        "old.n": {"why": "unreadable record", "record": "x", "message": "", "at": "2000000"},
    }
    for name, entry in entries.items():
        client.hset(f"{store.prefix}aside", name, json.dumps(entry))
    told = command.json("audit", code=1)
    assert [(one["code"], one["subject"]) for one in told["findings"]] == [("set-aside", name) for name in entries]
    shown = command.json("aside")["aside"]
    assert [(one["name"], one["queue"], one["at"]) for one in shown] == [("message 1", "shop", 1.0), ("old.n", "", 2.0)]
    assert "message 1  from shop  TypeError: \\x1b[31m\n" in command("aside").out
    assert command.json("aside", "--requeue", "message 1") == {"requeued": "message 1", "queue": "shop"}
    assert client.lrange("shop", 0, -1) == [b'{"poison": 1}']
    client.delete("shop")
    assert command.json("aside", "--requeue", "message 1", code=1)["error"]["kind"] == "UnknownName"
    assert command.json("aside", "--requeue", "old.n", code=1)["error"]["kind"] == "NoQueue"
    assert command.json("aside", "--delete", "old.n") == {"deleted": "old.n"}
    assert command.json("aside", "--delete", "old.n", code=1)["error"]["kind"] == "UnknownName"
    assert command("aside").out == "Nothing is set aside.\n"
    assert command.json("audit") == {"clean": True, "findings": []}


@pytest.mark.parametrize(("options", "warned"), [({}, True), ({"appendonly": "yes"}, False), ({"save": "60 1"}, False)])
def test_check_warns_of_a_redis_that_keeps_nothing(options: dict[str, str], warned: bool) -> None:
    with RedisServer(**options) as server:
        said = _command(broker_url=f"redis+socket://{server.socket}")("check").out
    assert ("warning  persistence: this Redis writes nothing to disk" in said) == warned
