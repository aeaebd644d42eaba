"""Measures the transport against kombu's, side by side in one run. docs/benchmarks.md says what the lines mean.

A missed goal is said, not raised, unless `--check` asks for it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from tests.bench.report import Row, render
from tests.bench.rounds import say
from tests.bench.transport.contention import contention
from tests.bench.transport.flood import flood, sift
from tests.bench.transport.profile import show_profile
from tests.bench.transport.scale import FULL, QUICK, Scale
from tests.bench.transport.throughput import VARIANTS, throughput

PARTS: dict[str, Callable[[Scale], Iterator[Row]]] = {
    "throughput": throughput,
    "contention": contention,
    "flood": flood,
    "sift": sift,
}
PAGE = Path(__file__).parents[3] / "docs" / "benchmarks.md"
BEGIN, END = "<!-- transport: begin -->", "<!-- transport: end -->"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.transport", description="What the transport is worth.")
    parser.add_argument("--quick", action="store_true", help="about a minute: fewer rounds, shorter queues, less exact")
    parser.add_argument("--only", choices=PARTS, action="append", help="only this part; may be given several times")
    parser.add_argument("--pool", choices=("prefork", "threads"), help="only this pool")
    parser.add_argument("--scheme", default=FULL.scheme, help="what is measured against redis:// (%(default)s)")
    parser.add_argument("--concurrency", type=int, default=FULL.concurrency, help="of a worker (%(default)s)")
    parser.add_argument("--rounds", type=int, help="how many count")
    parser.add_argument(
        "--set", metavar="NAME=JSON", action="append", default=[], help="a setting of Celery, on both sides"
    )
    parser.add_argument("--profile", choices=VARIANTS, help="where the time of worker and publisher goes, instead")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a goal is missed")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/benchmarks.md")
    return parser.parse_args()


def scale_of(options: argparse.Namespace) -> Scale:
    settings = {name: json.loads(value) for name, _, value in (text.partition("=") for text in options.set)}
    base = QUICK if options.quick else FULL
    return replace(
        base,
        scheme=options.scheme,
        concurrency=options.concurrency,
        conf=settings,
        pools=(options.pool,) if options.pool else base.pools,
        contended=(options.pool,) if options.pool else base.contended,
        rounds=options.rounds or base.rounds,
    )


def main() -> int:
    options = arguments()
    scale = scale_of(options)
    if options.profile:
        for pool in scale.pools:
            show_profile(options.profile, scale, pool)
        return 0
    started, rows = time.monotonic(), list[Row]()
    for name in options.only or PARTS:
        say(name)
        rows += PARTS[name](scale)
    say(f"done in {time.monotonic() - started:.0f} s, load {os.getloadavg()[0]:.1f}")
    print(json.dumps([row.as_json() for row in rows], indent=1) if options.json else render(rows))
    if options.write:
        write(render(rows), scale)
    return 1 if options.check and any(row.met is False for row in rows) else 0


def write(tables: str, scale: Scale) -> None:
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    day = time.strftime("%Y-%m-%d")
    head = f"{day}, {os.cpu_count()} cores, shared; {scale.rounds} rounds, at most 4 of slots and sifting."
    PAGE.write_text(f"{before}{BEGIN}\n{head}\n\n{tables}\n{END}{after}")


if __name__ == "__main__":
    sys.exit(main())
