"""`python -m tests.chaos --profile smoke --seed 1`: see docs/chaos.md."""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
from pathlib import Path

from tests.chaos import report
from tests.chaos.bugs import BUGS
from tests.chaos.fleet import Fleet, scratch
from tests.chaos.plan import PROFILES, make_plan
from tests.chaos.runner import AT_THE_END, play
from tests.chaos.sites import SITES

KEPT = Path(__file__).parents[2] / "build" / "chaos"


def main() -> int:
    parser = argparse.ArgumentParser(prog="chaos", description="Break everything at random, and count what is wrong.")
    parser.add_argument("--profile", choices=PROFILES, default="smoke")
    parser.add_argument("--on", choices=SITES, default="redis", help="what is broker and store")
    parser.add_argument("--seed", type=int, help="of the plan (default: a new one, which is named)")
    parser.add_argument("--seconds", type=float, help="how long there is load (default: the profile's)")
    parser.add_argument("--rate", type=float, help="calls a second (default: the profile's); more are shorter")
    parser.add_argument("--bug", choices=BUGS, help="put this defect into the workers, and see whether it is caught")
    parser.add_argument("--record", action="store_true", help=f"append the result to {report.RESULTS.name}")
    parser.add_argument(
        "--keep",
        metavar="DIRECTORY",
        type=Path,
        help="copy the ledger and the logs to here (default: where something is wrong, to build/chaos)",
    )
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nothing is left running
    bug = BUGS[given.bug] if given.bug else None
    seed = given.seed if given.seed is not None else bug.seed if bug else random.randrange(10**6)
    profile = PROFILES[given.profile]
    profile = profile.at_rate(given.rate) if given.rate else profile
    plan = make_plan(profile, seed, given.seconds, given.on, bug.faults if bug else ())
    print(f"chaos {given.profile}, seed {seed}: {len(plan.calls)} items, {len(plan.faults)} faults planned", flush=True)
    wrong = True
    with scratch() as directory:
        try:
            with Fleet(Path(directory), plan.profile.pools, on=given.on, bug=given.bug or "") as fleet:
                hunted = bug.seen_by if bug else frozenset()
                outcome = play(plan, fleet, lambda text: print(text, flush=True), hunted)
                wrong = bool(outcome.violations or outcome.trouble) and bug is None
        finally:
            if given.keep or wrong:
                keep(Path(directory), given.keep or KEPT / f"{given.profile}-{given.on}-{seed}")
    print(report.told(outcome))
    if bug is not None:
        found = bug.seen_by & {check.name for check in outcome.checks if check.violations}
        seen = sorted(found - AT_THE_END or found)
        print(f"{bug.name} is {'caught by ' + ', '.join(seen) if seen else 'NOT caught'}, in {outcome.seconds:.0f} s")
        return 0 if seen else 1
    if given.record:
        report.record(outcome)
    return 1 if wrong else 0


def keep(directory: Path, kept: Path) -> None:
    """The ledger and what the workers and servers said."""
    shutil.copytree(directory, kept, dirs_exist_ok=True, ignore=lambda _, names: [
        name for name in names if not (name.endswith(".log") or name == "ledger")
    ])  # fmt: skip
    print(f"The ledger and the logs are in {kept}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
