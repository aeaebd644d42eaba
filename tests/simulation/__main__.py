"""`python -m tests.simulation --seed 123` tells one story aloud, `--seeds 100000` many; see docs/simulation.md."""

from __future__ import annotations

import argparse
import signal
import sys
import time

from .runner import Progress, Tally, default_jobs, replay, spread

EVERY = 10.0
"""Seconds between two lines of progress."""


def _many(first: int, seeds: int, jobs: int) -> int:
    """Violations are told as soon as they are found, and again at the end, also of a run that is broken off."""
    now, told, shown = Progress(Tally(), 0.0, first), time.monotonic(), set[int]()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        for now in spread(first, seeds, jobs):
            for seed in now.tally.violations.keys() - shown:
                print(f"{now.tally.violations[seed]}\n    replay it: make simulate SEED={seed}", flush=True)
                shown.add(seed)
            if time.monotonic() - told > EVERY:
                told = time.monotonic()
                print(_progress(now, seeds), flush=True)
    except KeyboardInterrupt:
        left = first + seeds - now.reached
        print(f"broken off; go on with: make simulate FIRST={now.reached} SEEDS={left}")
    print(_summary(now.tally, now.seconds, jobs), flush=True)
    return 1 if now.tally.violations or now.tally.seeds < seeds else 0


def _progress(now: Progress, seeds: int) -> str:
    rate = now.tally.seeds / now.seconds
    left = (seeds - now.tally.seeds) / rate
    return (
        f"{now.tally.seeds:,} of {seeds:,} seeds, all below {now.reached}, {rate * 60:,.0f} a minute, "
        f"{left / 60:.1f} minutes left, {len(now.tally.violations)} violations"
    )


def _summary(tally: Tally, seconds: float, jobs: int) -> str:
    seeds = f", seeds {', '.join(map(str, sorted(tally.violations)))}" if tally.violations else ""
    faults = ", ".join(f"{name} {count:,}" for name, count in tally.faults.most_common())
    return (
        f"{tally.seeds:,} seeds in {seconds:,.0f} s on {jobs} processes: {tally.messages:,} messages, "
        f"{tally.bodies:,} bodies, {tally.calls:,} calls, {tally.unanswered:,} of them without an answer\n"
        f"faults: {faults}\nviolations: {len(tally.violations)}{seeds}"
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
