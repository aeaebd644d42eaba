"""Runs the suites on both sides and prints every test whose outcome differs.

    python -m tests.upstream [--full] [--suite NAME] [-k TEXT]

Exits with 1 when a difference is neither in the table of `suites` nor gone after being tried again.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from tests.bench.rounds import say
from tests.upstream.sides import PREFIX, Side
from tests.upstream.sources import Sources, prepare
from tests.upstream.suites import SLOW_TIMEOUT, SUITES, Suite, is_slow, reason_for


@dataclass(frozen=True, slots=True)
class Difference:
    test: str
    theirs: str
    ours: str
    reason: str | None
    text: str

    @property
    def is_worse(self) -> bool:
        """Worse than kombu's and for no reason that we know."""
        return self.reason is None


def compare(suite: Suite, sources: Sources, options: argparse.Namespace) -> list[Difference]:
    notes = sources.directory / "notes"
    suite = replace(suite, timeout=SLOW_TIMEOUT) if options.full else suite
    theirs = Side(suite, sources, "redis", notes)
    ours = Side(suite, sources, options.scheme, notes)
    collected = [test for test in theirs.collect() if options.k in test]
    tests = [test for test in collected if options.full or not is_slow(test)]
    say(f"{suite.name}: {len(tests)} tests a side, {len(collected) - len(tests)} left to the full run")
    started = time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda side: side.run(tests), (theirs, ours)))
    for _ in range(suite.tries - 1):
        _again(theirs, ours)
    for side in (theirs, ours):
        counts = Counter(outcome.kind for outcome in side.outcomes.values())
        said = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
        print(f"{suite.name:12} {side.scheme + '://':16} {said}", flush=True)
    say(f"{suite.name}: {time.monotonic() - started:.0f} s")
    if options.times:
        _print_slowest(theirs, options.times)
    return _differences(theirs, ours)


def _again(theirs: Side, ours: Side) -> None:
    """Tests that failed on one side only, there, one by one: a machine under load makes some of them fail."""
    for side, other in ((theirs, ours), (ours, theirs)):
        good = {test for test, outcome in other.outcomes.items() if outcome.is_good}
        unlucky = [test for test, outcome in side.outcomes.items() if not outcome.is_good and test in good]
        if again := [test for test in unlucky if reason_for(side.suite.name, test) is None]:
            say(f"  {side.suite.name} {side.scheme}://: {len(again)} tried again")
            side.run(again, shards=1)


def _differences(theirs: Side, ours: Side) -> list[Difference]:
    found = []
    for test in sorted(theirs.outcomes.keys() | ours.outcomes.keys()):
        one, other = theirs.outcomes.get(test), ours.outcomes.get(test)
        kinds = (one.kind if one else "absent", other.kind if other else "absent")
        if kinds[0] != kinds[1]:
            text = other.text if other else ""
            found.append(Difference(test, *kinds, reason_for(theirs.suite.name, test), text))
    return found


def _print_slowest(side: Side, count: int) -> None:
    slowest = sorted(side.outcomes.items(), key=lambda item: -item[1].seconds)[:count]
    for test, outcome in slowest:
        print(f"  {outcome.seconds:6.1f} s  {test}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.upstream", description="Celery's and kombu's own tests.")
    parser.add_argument("--full", action="store_true", help="with the tests that take minutes")
    parser.add_argument("--suite", choices=[suite.name for suite in SUITES], action="append", help="only this one")
    parser.add_argument("--scheme", default=f"{PREFIX}redis", help="of the broker that is compared with redis://")
    parser.add_argument("--times", type=int, default=0, metavar="N", help="print the N slowest tests")
    parser.add_argument("-k", default="", metavar="TEXT", help="only tests with this in their id")
    options = parser.parse_args()
    sources = prepare()
    shutil.rmtree(sources.directory / "notes", ignore_errors=True)
    unexpected = 0
    for suite in SUITES:
        if options.suite and suite.name not in options.suite:
            continue
        for difference in compare(suite, sources, options):
            mark = "by design" if difference.reason else "DIFFERS"
            print(f"  {mark:9} {difference.test}: {difference.theirs} -> {difference.ours}")
            print(f"            {difference.reason or difference.text.strip()[-400:]}")
            unexpected += difference.is_worse
    print(f"{unexpected} unexpected differences" if unexpected else "no unexpected difference")
    return 1 if unexpected else 0


if __name__ == "__main__":
    sys.exit(main())
