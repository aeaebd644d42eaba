"""A publisher in a process of its own: reads orders as lines of JSON, answers each with how long it took.

An order is `{"task": name, "args": [...], "times": n}`; "keys" spreads the tasks over so many keys. The answer has the
seconds, the CPU seconds, and the moment before the first publish. `{"resize": key, "size": n}` sets the size of a
limit, `{"waiting": key}` asks for the length of its line.
"""

from __future__ import annotations

import cProfile
import json
import os
import sys
import time
from typing import Any

from tests.bench.transport.app import app
from tests.bench.transport.profiled import OUTPUT

__all__: list[str] = []


def obey(order: dict[str, Any]) -> dict[str, Any]:
    if "task" in order:
        return publish_all(order)
    from celery_limits import Limits  # noqa: PLC0415  (the plain variant does without)

    if "resize" in order:
        Limits(app).resize(order["resize"], order["size"])
        return {}
    return {"waiting": Limits(app).status(order["waiting"]).waiting}


def publish_all(order: dict[str, Any]) -> dict[str, Any]:
    task, args, times, keys = app.tasks[order["task"]], order["args"], order["times"], order["keys"]
    spread = [[f"{args[0]}-{number}" if keys > 1 else args[0], *args[1:]] for number in range(keys)]
    publish = task.apply_async
    cpu, began = time.process_time(), time.monotonic_ns()
    for number in range(times):
        publish(spread[number % keys])
    ended = time.monotonic_ns()
    return {"seconds": (ended - began) / 1e9, "cpu": time.process_time() - cpu, "began": began}


def main() -> None:
    output = os.environ.get(OUTPUT)
    profiler = cProfile.Profile(time.process_time) if output else None
    for line in sys.stdin:
        if profiler:
            profiler.enable()
        answer = obey(json.loads(line))
        if profiler:
            profiler.disable()
        print(json.dumps(answer), flush=True)
    if profiler and output:
        profiler.dump_stats(output)


if __name__ == "__main__":
    main()
