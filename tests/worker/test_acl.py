"""The rules in SECURITY.md are enough for each role's work, on every server, and give none of what they should not."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis.exceptions import NoPermissionError

from tests.cli.command import Command
from tests.redis_server import RedisServer
from tests.waiting import wait_until
from tests.worker.harness import ROOT, Scene, celery_program, environment
from tests.worker.proj import build

RULES = re.findall(r"^ACL SETUSER (\S+) (.*)$", (Path(__file__).parents[2] / "SECURITY.md").read_text(), re.MULTILINE)
ROLES = [name for name, _ in RULES]
PASSWORD = "s3cr3t"


@pytest.fixture
def server(redis_server: RedisServer) -> Iterator[RedisServer]:
    """With one user for each rule; what it refuses is in its log of refusals."""
    with RedisServer(redis_server.binary) as server, server.client() as admin:
        for name, rule in RULES:
            admin.execute_command("ACL", "SETUSER", name, *rule.replace("PASSWORD", PASSWORD).split())
        admin.execute_command("ACL", "LOG", "RESET")
        yield server


@pytest.fixture
def at_home(scene: Scene) -> Iterator[None]:
    """The scene looks for leftovers in the store of its app: at the end that of the session again."""
    app, limits = scene.app, scene.limits
    yield
    scene.app, scene.limits = app, limits


def refused(server: RedisServer) -> list[tuple[str, str, str]]:
    """But for the name of redis-py itself, which it tells when it connects (CLIENT SETINFO), and what `limits check`
    asks about persistence (CONFIG GET): it does without either."""
    with server.client(decode_responses=True) as admin:
        found = [(one["username"], one["reason"], one["object"]) for one in admin.acl_log()]
    return [one for one in found if not one[2].startswith(("client", "config"))]


def url(server: RedisServer, role: str, scheme: str = "limits+redis+socket") -> str:
    return f"{scheme}://{role}:{PASSWORD}@{server.socket}"


def configure(scene: Scene, **conf: Any) -> None:
    """The namespace and queue that the rules are for."""
    scene.configure(limits_namespace="celery", task_default_queue="celery", limits_lease=30.0, **conf)
    scene.queue = "celery"


def as_role(scene: Scene, **conf: Any) -> Any:
    """The same app, as another user sees it."""
    return build({**scene.conf, **conf})


def work(scene: Scene, publisher: Any, operator: Any = None) -> None:
    """Runs, parks, resumes, revokes, retries, with priorities and etas; published by one user, run by another, and
    steered by a third."""
    scene.app = publisher
    holder = scene.send("early", "holder")
    scene.wait_started("holder")
    waiting = [scene.send("early.quick", f"waits{i}", priority=3 * (i % 4)) for i in range(6)]
    later = scene.send("early.quick", "later", key="later", countdown=0.2)
    again = scene.send("early.quick", "again", "retry", key="again")
    free = scene.send("plain", "free")
    assert free.get() == "free"
    later.get()
    again.get()
    scene.wait_parked(len(waiting))
    publisher.control.revoke(waiting.pop().id)
    if operator is not None:
        steer(scene, operator, holder.id, waiting.pop().id)
    scene.stage.open_all()
    for sent in (holder, *waiting):
        sent.get()


def steer(scene: Scene, operator: Any, holder: str, waits: str) -> None:
    """Each command of the operator."""
    key, command = scene.key, Command(operator, {})
    commands = [
        ["list"], ["show", key], ["explain", waits], ["tasks"], ["resize", key, "1"], ["pause", key], ["resume", key],
        ["reset", key], ["audit"], ["audit", "--repair"], ["check"], ["top"], ["metrics", "--once"],
        ["explain", holder], ["cancel", waits],
    ]  # fmt: skip
    for arguments in commands:
        command.json(*arguments)
    inspect = operator.control.inspect(timeout=20, limit=1)
    assert inspect.stats()
    assert inspect.limits()
    operator.control.broadcast("limits_pause", {"key": key}, reply=True, timeout=20, limit=1)
    command("resume", key)
    done = celery_program({**scene.conf, "broker_url": operator.conf.broker_url}, "inspect", "stats")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.usefixtures("at_home")
@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_on_one_redis_each_role_can_do_its_work(scene: Scene, server: RedisServer, pool: str) -> None:
    configure(scene, broker_url=url(server, "shop-worker"))
    worker = scene.start(pool, "-E")
    operator = as_role(scene, broker_url=url(server, "shop-operator"))
    work(scene, as_role(scene, broker_url=url(server, "shop-publisher")), operator if pool == "prefork" else None)
    worker.stop()
    assert refused(server) == []
    assert "NOPERM" not in worker.log


def test_a_worker_with_mingle_gossip_and_events(server: RedisServer, tmp_path: Path) -> None:
    """As `celery worker` is without the options that other tests give it."""
    conf = {"broker_url": url(server, "shop-worker"), "limits_namespace": "celery", "stage": str(tmp_path)}
    command = [sys.executable, "-m", "celery", "-A", "tests.worker.proj", "worker", "-l", "info", "-E", "-P", "solo"]
    log = tmp_path / "log.txt"
    with log.open("wb") as file:
        worker = subprocess.Popen(
            [*command, "-n", "alone@test"], cwd=ROOT, env=environment(conf), stdout=file, stderr=file
        )
    try:
        wait_until(lambda: "alone@test ready" in log.read_text(), "the worker is ready", within=60)
        with server.client() as admin:
            wait_until(lambda: admin.pubsub_numpat() >= 2, "it listens to commands and to its neighbours")
        app = build({**conf, "broker_url": url(server, "shop-operator")})
        assert app.control.inspect(["alone@test"], timeout=20).ping() == {"alone@test": {"ok": "pong"}}
        assert worker.poll() is None
        assert refused(server) == []
    finally:
        worker.terminate()
        worker.wait(30)


@pytest.mark.usefixtures("at_home")
def test_a_producer_that_reaches_no_limits_publishes_limited_tasks(scene: Scene, server: RedisServer) -> None:
    configure(scene, broker_url=url(server, "shop-worker"), limits_trust_headers=False)
    scene.start("threads")
    home = scene.limits
    scene.app = as_role(scene, broker_url=url(server, "shop-producer", "redis+socket"))
    sent = [scene.send("early", f"task{i}") for i in range(3)]
    wait_until(lambda: home.status(scene.key).waiting == 2, "two wait, since one may run")
    scene.stage.open_all()
    for one in sent:
        one.get()
    assert refused(server) == []


@pytest.mark.usefixtures("at_home")
def test_a_separate_store(scene: Scene, server: RedisServer, broker: RedisServer) -> None:
    there = url(server, "shop-store", "unix")
    configure(scene, broker_url=f"redis+socket://{broker.socket}?virtual_host=5", limits_store_url=there)
    scene.start("prefork")
    work(scene, scene.app, scene.app)
    assert refused(server) == []


DENIED = [
    ("FLUSHALL",), ("FLUSHDB",), ("KEYS", "*"), ("CONFIG", "GET", "*"), ("SHUTDOWN",), ("ACL", "LIST"), ("MONITOR",),
    ("CLIENT", "KILL", "USER", "default"), ("SCRIPT", "FLUSH"), ("GET", "another:secret"), ("SAVE",),
    ("SET", "another:secret", "x"), ("REPLICAOF", "NO", "ONE"), ("PUBLISH", "another", "x"), ("SWAPDB", "0", "1"),
]  # fmt: skip


@pytest.mark.parametrize("role", ROLES)
def test_no_role_has_more(server: RedisServer, role: str) -> None:
    with server.client(username=role, password=PASSWORD) as client:
        for command in DENIED:
            with pytest.raises(NoPermissionError):
                client.execute_command(*command)


def test_a_producer_that_is_not_trusted_can_not_touch_the_limits(server: RedisServer) -> None:
    with server.client(username="shop-producer", password=PASSWORD) as client:
        for command in (
            ("GET", "limits:{celery}:serial"),
            ("LPUSH", "limits:{celery}:call:celery", "1"),
            ("EVAL", "return 1", "0"),
            ("LRANGE", "celery", "0", "-1"),
            ("DEL", "celery"),
            ("SCAN", "0"),
        ):
            with pytest.raises(NoPermissionError):
                client.execute_command(*command)
