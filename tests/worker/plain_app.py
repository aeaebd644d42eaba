"""A worker of an app that knows nothing of limits: it neither imports the package nor has its broker URL.

Run as a program, with the broker, the queue and the ledger as arguments. Celery's own program would load the plugins of
every installed package, ours among them; the class behind it does not.
"""

from __future__ import annotations

import os
import sys
import time

from celery import Celery

app = Celery("plain", broker=sys.argv[1], set_as_current=False)
app.conf.update(worker_prefetch_multiplier=1, task_default_queue=sys.argv[2], worker_hijack_root_logger=False)


def note(key: str, name: str, **_: object) -> None:
    """A line for each body."""
    descriptor = os.open(sys.argv[3], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, f"{time.monotonic()} {key} {name}\n".encode())
    finally:
        os.close(descriptor)


for task in ("plain", "early", "late"):
    app.task(name=task)(note)

if __name__ == "__main__":
    worker = app.Worker(hostname="plain@test", queues=[sys.argv[2]], concurrency=1, pool_cls="solo", loglevel="INFO")
    assert "celery_limits" not in sys.modules
    worker.start()
