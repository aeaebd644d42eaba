"""Generated messages, sent to a live worker of each pool and on each broker, beside ordinary limited tasks.

After each batch the worker lives, the ordinary tasks ran under their limits, nothing is unacknowledged, the audit finds
nothing, and no script has blocked Redis. `LIMITS_FUZZ_EXAMPLES` is the number of batches, with new
seeds; `LIMITS_FUZZ_SEED` repeats one.
"""

from __future__ import annotations

import os
import random
from typing import Any

import pytest

from tests.fuzz.budget import batches_of
from tests.fuzz.forger import Forger, shown
from tests.rabbit_node import RabbitNode
from tests.redis_server import RedisServer
from tests.waiting import wait_until
from tests.worker.harness import Scene, Worker
from tests.worker.raw import send_raw

BATCH = 25
"""Forged messages."""
BESIDE = 4
"""Ordinary ones."""
SLOWEST = 0.1
"""Seconds of a script, on a machine that does other things as well."""
PATIENCE = 60.0

TRUSTING = ("prefork", "gevent")
"""Pools whose workers trust the chains of others; those of the other pools resolve them by themselves."""

QUICK = {("limits+redis", pool) for pool in ("prefork", "threads", "gevent", "eventlet", "solo")} | {
    (site, pool) for site in ("redis", "rabbitmq") for pool in ("prefork", "threads")
}


def _cases() -> list[Any]:
    found = []
    for site in ("limits+redis", "redis", "rabbitmq"):
        for pool in ("prefork", "threads", "gevent", "eventlet", "solo"):
            marks = [pytest.mark.xdist_group(f"fuzz-{site}"), pytest.mark.own_broker]
            if (site, pool) not in QUICK:
                marks.append(pytest.mark.long)
            found.append(pytest.param(site, pool, marks=marks, id=f"{site}-{pool}"))
    return found


def _seeds(site: str, pool: str, count: int) -> list[int]:
    base = random.SystemRandom().randrange(2**32) if os.environ.get("LIMITS_FUZZ_EXAMPLES") else 1
    if seed := os.environ.get("LIMITS_FUZZ_SEED"):
        return [int(seed)]
    return [random.Random(f"{site} {pool} {base + i}").randrange(2**32) for i in range(count)]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("site", "pool"), _cases())
def test_no_message_stops_slows_or_bypasses(
    site: str, pool: str, scene: Scene, broker: RedisServer, request: pytest.FixtureRequest
) -> None:
    if site == "rabbitmq":
        node: RabbitNode = request.getfixturevalue("node")
        where = {"broker_url": node.url, "limits_store_url": broker.url}
    elif site == "redis":
        where = {"broker_url": f"redis+socket://{broker.socket}", "limits_store_url": broker.url}
    else:
        where = {"broker_url": f"limits+redis+socket://{broker.socket}"}
    scene.configure(**where, limits_trust_headers=pool in TRUSTING)
    scene.sizes[f"{scene.key}:rated"] = BATCH
    worker = scene.start(pool, concurrency=1 if pool == "solo" else 2)
    with broker.client() as client:
        client.config_set("slowlog-log-slower-than", int(SLOWEST * 1e6))
        for seed in _seeds(site, pool, batches_of(2)):
            client.slowlog_reset()
            messages = _one_batch(scene, site, worker, seed)
            slow = [entry for entry in client.slowlog_get(10) if entry["command"][:4].upper() == b"EVAL"]
            assert slow == [], f"seed {seed}: scripts that took longer than {SLOWEST:g} s; {len(messages)} messages"


def _one_batch(scene: Scene, site: str, worker: Worker, seed: int) -> list[Any]:
    trusted = scene.conf["limits_trust_headers"]
    forger = Forger(seed, scene.queue, {"key": scene.key, "name": "forged"}, site, trusted=trusted)
    messages = [forger.message() for _ in range(BATCH)]
    beside = []
    for i in range(BESIDE):
        beside.append(scene.send("early.quick", f"beside-{seed}-{i}"))
        send_raw(scene, *messages[i::BESIDE])
    try:
        for sent in beside:
            sent.get(within=PATIENCE)
        wait_until(lambda: _is_done(scene, site), "all messages are acknowledged", within=PATIENCE)
        client: Any = scene.limits.store.client
        client.delete(f"{scene.limits.store.prefix}aside")
        scene.wait_quiet()
        assert worker.is_running
        assert "Unrecoverable" not in worker.log
        assert scene.stage.peaks()[scene.key] == 1
    except AssertionError as error:
        told = "\n".join(map(shown, messages))
        raise AssertionError(f"LIMITS_FUZZ_SEED={seed}: {error}\nleft: {scene.left()}\nmessages:\n{told}") from error
    return messages


def _is_done(scene: Scene, site: str) -> bool:
    """Nothing is in the queue, with a worker, or in the store, but for what was set aside."""
    if site == "rabbitmq":
        with scene.app.connection_for_read() as connection:
            declared = connection.default_channel.queue_declare(scene.queue, passive=True)
            waiting = int(declared.message_count)
    else:
        client: Any = scene.limits.store.client
        waiting = client.exists(scene.queue)
    return not waiting and all(left == "aside" for left in scene.left())
