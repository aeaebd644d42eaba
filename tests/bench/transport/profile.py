"""Where the time goes in one variant: cProfile of the worker's own loop and of the publisher."""

from __future__ import annotations

import pstats
import tempfile
from pathlib import Path

from tests.bench.rounds import say
from tests.bench.transport.fleet import Fleet
from tests.bench.transport.scale import Scale
from tests.bench.transport.throughput import TASKS, TENANTS, plan_of

__all__ = ["show_profile"]

TOP = 30


def show_profile(variant: str, scale: Scale, pool: str) -> None:
    with tempfile.TemporaryDirectory(prefix="limits-profile-") as name:
        with Fleet(plan_of(variant, scale, pool, profile=Path(name))) as fleet:
            say(f"{variant}, {pool} -c {scale.concurrency}: {scale.noops:,} no-ops under the profiler")
            sent, drained = fleet.filled(TASKS[variant], "tenant", times=scale.noops, keys=TENANTS)
        rates = f"{drained.rate:,.0f} tasks/s, {scale.noops / sent.seconds:,.0f} publishes/s"
        print(f"## {variant}, {pool}: {rates} under the profiler")
        for who in ("worker0", "publisher"):
            for order in ("tottime", "cumulative"):
                print(f"### {who}, by {order}\n")
                pstats.Stats(str(Path(name) / who)).strip_dirs().sort_stats(order).print_stats(TOP)
