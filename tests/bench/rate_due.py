"""How long after its time a task that waits for a rate starts: `python -m tests.bench.rate_due`.

One worker, one rate link, one task at a time that has to wait for its token. The body notes when it starts; the store
says when its token was due. On an idle machine the worst should be below 20 ms.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from celery_limits import RateLimit
from tests.redis_server import RedisServer
from tests.waiting import wait_until
from tests.worker.harness import Scene, Workers, app_on

SAMPLES = 15
INTERVAL = 1.0
"""Seconds between two tokens."""


def measure(scene: Scene) -> list[float]:
    """Seconds from the time at which each was due to its start."""
    limits = [RateLimit(f"{scene.key}:rate", f"{round(1 / INTERVAL)}/s", burst=1)]
    late: list[float] = []
    for number in range(3 * SAMPLES):
        spend(scene, limits, f"first{number}")
        scene.send("early.quick", f"due{number}", limits=limits)
        due = seen_due(scene)
        scene.wait_ended(f"due{number}")  # from the ledger: whoever asks Redis keeps it awake
        if due:
            late.append(time_of(scene, f"due{number}") - due)
        if len(late) == SAMPLES:
            break
    return late


def seen_due(scene: Scene) -> float:
    """When it is due; 0 if the machine was too busy for it to wait at all."""
    try:
        return wait_until(lambda: due_at(scene), "it waits for its rate", within=INTERVAL)
    except AssertionError:
        return 0.0


def spend(scene: Scene, limits: Any, name: str) -> None:
    """Takes the token that has become due since."""
    time.sleep(INTERVAL)
    scene.send("early.quick", name, limits=limits)
    scene.wait_ended(name)


def due_at(scene: Scene) -> float:
    """When the store will let the waiter go, in seconds of this machine's clock; 0 while none waits."""
    client: Any = scene.limits.store.client
    found = client.zrange(f"{scene.limits.store.prefix}alarms", 0, -1, withscores=True)
    return min((score / 1e6 for name, score in found if name.startswith(b"rate|")), default=0.0)


def time_of(scene: Scene, name: str) -> float:
    """The ledger has the monotonic time."""
    return scene.stage.starts(name)[0].at + time.time() - time.monotonic()


def main() -> None:
    with RedisServer() as server, tempfile.TemporaryDirectory() as directory:
        app, conf = app_on(server, Path(directory))
        workers = Workers(conf, Path(directory))
        try:
            for pool in ("prefork", "threads"):
                scene = Scene(app, workers, Path(directory), pool)
                scene.share(pool)
                late = sorted(value * 1000 for value in measure(scene))
                figures = f"median {statistics.median(late):.1f} ms, worst {late[-1]:.1f} ms"
                print(f"{pool}: a due waiter starts {figures} after its time ({len(late)} samples)")
        finally:
            workers.stop()


if __name__ == "__main__":
    main()
