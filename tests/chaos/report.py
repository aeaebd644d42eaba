"""What a chaos run came to: for a person, and as a row of the table in docs/chaos-results.md."""

from __future__ import annotations

import subprocess
from collections import Counter
from datetime import datetime, timezone
from pathlib import Path

from tests.chaos.runner import Outcome

__all__ = ["RESULTS", "record", "told"]

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "chaos-results.md"
SHOWN = 20
"""Violations of one check that are shown with their lines."""


def told(outcome: Outcome) -> str:
    plan = outcome.plan
    parts = [f"{check.name:22} {check.looked:7,} looked at, {len(check.violations)} violations" + _of(check.excused)
             for check in outcome.checks]  # fmt: skip
    parts.append(f"{'13 nothing left':22} {len(outcome.left)} left over")
    for check in outcome.checks:
        parts += [f"\n{violation}" for violation in check.violations[:SHOWN]]
    parts += [f"left over: {name}" for name in outcome.left[:SHOWN]]
    parts += [f"trouble: {text}" for text in outcome.trouble]
    parts.append(
        f"\n{_tasks(outcome):,} tasks, {len(outcome.history.runs):,} bodies, {outcome.kills} hard kills, "
        f"{sum(outcome.faults.values())} faults{_of(outcome.faults)} in {outcome.seconds:.0f} s"
    )
    again = f"make chaos PROFILE={plan.profile.name} SEED={plan.seed}"
    if plan.profile.name == "long":
        again += f" DURATION={plan.profile.seconds:.0f}"
    if plan.on != "redis":
        again += f" ON={plan.on}"
    if plan.profile.haste != 1:
        again += f" RATE={plan.profile.rate:g}"
    parts.append(f"{outcome.violations} violations. Again: {again}")
    return "\n".join(parts)


def _of(counts: Counter[str]) -> str:
    named = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
    return f" ({named})" if named else ""


def _tasks(outcome: Outcome) -> int:
    return sum(call.published is not None for call in outcome.history.calls.values())


def record(outcome: Outcome) -> None:
    """One row at the end of the table, whatever is said below it."""
    by_name = {check.name: check for check in outcome.checks}
    again = sum(by_name["5 ends once"].excused.values())
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
    faults = ", ".join(f"{name} {count}" for name, count in sorted(outcome.faults.items()))
    plan = outcome.plan
    profile = plan.profile.name + (f" on {plan.on}" if plan.on != "redis" else "")
    profile += f", {plan.profile.rate:g} a second" if plan.profile.haste != 1 else ""
    row = [
        f"{datetime.now(timezone.utc):%Y-%m-%d}", commit, profile, plan.seed,
        f"{_tasks(outcome):,}", outcome.kills, faults, outcome.violations, len(by_name["5 nothing lost"].violations),
        again, len(outcome.left),
    ]  # fmt: skip
    lines = RESULTS.read_text().splitlines()
    last = max(i for i, line in enumerate(lines) if line.startswith("|"))
    lines.insert(last + 1, "| " + " | ".join(map(str, row)) + " |")
    RESULTS.write_text("\n".join(lines) + "\n")
