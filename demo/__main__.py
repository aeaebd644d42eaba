"""`python -m demo`: runs the demo, shows it, and ends with exit code 1 if a promise was broken."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

from rich.console import Console

__all__ = ["main"]

CUT_OFF = (
    "A worker was cut off from Redis for longer than its lease: this machine is too busy for so short a one. What such "
    "a worker runs goes on, beside those that are given its slots. Try: make demo ARGS='--lease 10'"
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m demo", description=__doc__)
    parser.add_argument("--orders", type=int, default=130, help="how many orders there are (%(default)s)")
    parser.add_argument("--lease", type=float, default=2.5, help="seconds until a killed worker is known (%(default)s)")
    parser.add_argument("--out", type=Path, default=Path("demo-out"), help="where the plot goes (%(default)s)")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="limits-demo-") as directory:
        os.environ.update(LIMITS_DEMO=directory, LIMITS_DEMO_LEASE=str(given.lease))  # the workers inherit it
        try:
            return _run(given.orders, given.out)
        finally:
            for file in [*Path(directory).glob("*.log"), *Path(directory).glob("*.jsonl")]:
                shutil.copy(file, given.out)


def _run(count: int, out: Path) -> int:
    from .play import Play  # noqa: PLC0415  (the app reads the environment)
    from .plot import draw  # noqa: PLC0415
    from .screen import live, plain, show_verdict  # noqa: PLC0415
    from .shop import BURST, RATE, SIZES, ledger  # noqa: PLC0415
    from .verdict import judge  # noqa: PLC0415

    console = Console()
    with (live if console.is_terminal else plain)(console) as show:
        play = Play(count, show)
        audit = play.run()
        show(play.view)
    entries = ledger.entries()
    findings = judge(entries, SIZES, RATE, BURST, audit)
    pictures = [out / f"running.{kind}" for kind in ("png", "svg")]
    draw(entries, SIZES, RATE, BURST, pictures)
    show_verdict(console, findings, [str(path) for path in pictures])
    if all(finding.kept for finding in findings):
        return 0
    if play.was_cut_off:
        console.print(CUT_OFF, style="yellow")
    return 1


if __name__ == "__main__":
    sys.exit(main())
