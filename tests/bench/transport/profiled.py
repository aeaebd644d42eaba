"""Runs `celery` under cProfile, from ready to shutdown and its main thread only: the loop, not the bodies in its pool.

    LIMITS_BENCH_PROFILE=file python -m tests.bench.transport.profiled -A … worker …

The clock is the thread's processor time, since others use the machine too; what waits for Redis shows in its calls.
"""

from __future__ import annotations

import cProfile
import os
import sys
import time
from typing import Any

from celery import signals
from celery.__main__ import main

__all__ = ["OUTPUT"]

OUTPUT = "LIMITS_BENCH_PROFILE"
"""The environment variable that says where the profile goes."""


def run() -> None:
    profiler = cProfile.Profile(time.thread_time)

    def begin(**_: Any) -> None:
        profiler.enable()

    def end(**_: Any) -> None:
        profiler.disable()
        profiler.dump_stats(os.environ[OUTPUT])

    signals.worker_ready.connect(begin)
    signals.worker_shutting_down.connect(end)
    os.register_at_fork(after_in_child=profiler.disable)
    sys.argv[0] = "celery"
    main()


if __name__ == "__main__":
    run()
