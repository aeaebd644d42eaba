"""Two tenants, one of them flooding, under a limit of two tasks at once each, and a rate for both together.

Needs nothing but this package with its `embedded` extra; it starts a Redis and a worker of its own and ends by itself:

    python examples/tenants.py
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from threading import Lock

from celery import Celery, group
from celery.contrib.testing.worker import start_worker

from celery_limits import Concurrency, Limits, RateLimit
from celery_limits.embedded import EmbeddedRedis

app = Celery("shop")
running, peak, lock = Counter[str](), Counter[str](), Lock()


@app.task(limits=[Concurrency("tenant:{tenant}", 2), RateLimit("carrier-api", "20/s", burst=4)])
def ship(tenant: str, order: int) -> str:
    with lock:
        running[tenant] += 1
        peak[tenant] = max(peak[tenant], running[tenant])
    time.sleep(0.1)
    with lock:
        running[tenant] -= 1
    return f"{tenant}/{order}"


def main() -> None:
    with tempfile.TemporaryDirectory() as directory, EmbeddedRedis(directory) as server:
        path = server.url.removeprefix("unix://")
        results = "cache+memory://"  # client and worker are one process here
        app.conf.update(broker_url=f"redis+socket://{path}", result_backend=results)
        orders = [ship.s("small", n) for n in range(4)] + [ship.s("flooding", n) for n in range(20)]
        with start_worker(app, pool="threads", concurrency=8, perform_ping_check=False, loglevel="warning"):
            began = time.monotonic()
            done = group(orders).apply_async().get(timeout=60)
            seconds = time.monotonic() - began
        findings = Limits(app).audit() or "clean"
        print(f"{len(done)} orders in {seconds:.1f} s; most at once: {dict(peak)}; audit: {findings}")


if __name__ == "__main__":
    main()
