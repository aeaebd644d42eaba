"""`python -m tests.simulation --seed 123` tells one story aloud, `--seeds 100000` many; see docs/simulation.md."""

from __future__ import annotations

import argparse
import sys
import time

from .runner import Tally, default_jobs, replay, spread

EVERY = 10.0
"""Seconds between two lines of progress."""


def _many(first: int, seeds: int, jobs: int) -> int:
    tally, seconds, told, shown = Tally(), 0.0, time.monotonic(), set[int]()
    for tally, seconds in spread(first, seeds, jobs):
        for seed in tally.violations.keys() - shown:
            print(f"{tally.violations[seed]}\n    replay it: make simulate SEED={seed}", flush=True)
            shown.add(seed)
        if time.monotonic() - told > EVERY:
            told = time.monotonic()
            rate = tally.seeds / seconds
            left = (seeds - tally.seeds) / rate
            print(
                f"{tally.seeds:,} of {seeds:,} seeds, {rate * 60:,.0f} a minute, {left / 60:.1f} minutes left, "
                f"{len(tally.violations)} violations",
                flush=True,
            )
    print(_summary(tally, seconds, jobs))
    return 1 if tally.violations else 0


def _summary(tally: Tally, seconds: float, jobs: int) -> str:
    faults = ", ".join(f"{name} {count:,}" for name, count in tally.faults.most_common())
    return (
        f"{tally.seeds:,} seeds in {seconds:,.0f} s on {jobs} processes: {tally.messages:,} messages, "
        f"{tally.bodies:,} bodies, {tally.calls:,} calls, {tally.unanswered:,} of them without an answer\n"
        f"faults: {faults}\nviolations: {len(tally.violations)}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="simulate", description="Simulate whole lives of workers over the real store."
    )
    parser.add_argument("--seed", type=int, help="tell this story aloud, call by call")
    parser.add_argument("--seeds", type=int, default=1000, help="how many stories to tell (default: 1000)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--jobs", type=int, default=default_jobs(), help="processes (default: one per core)")
    args = parser.parse_args()
    if args.seed is None:
        return _many(args.first, args.seeds, args.jobs)
    wrong = replay(args.seed, print)
    print(f"\n{wrong or f'seed {args.seed}: every guarantee holds'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
