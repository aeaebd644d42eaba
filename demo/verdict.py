"""The verdict: what was promised, against what the ledger says.

Every check is sound however slow the machine is: it may find a broken promise only where one was broken.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from .ledger import Entry, Run, runs_of, steps_of

__all__ = ["Finding", "judge", "limit_steps"]


@dataclass(frozen=True)
class Finding:
    """One promise: whether it was kept, and the figures."""

    kept: bool
    promise: str
    figures: str


def judge(
    entries: Sequence[Entry], sizes: Mapping[str, int], rate: float, burst: int, audit: Sequence[str]
) -> list[Finding]:
    """`sizes` are the limits by key, as they are at first; `rate` and `burst` those of the API."""
    runs = runs_of(entries)
    found = [_never_over(entries, runs, key, size) for key, size in sizes.items()]
    found.append(_within_rate(entries, runs, rate, burst))
    found.append(_first_orders(entries, runs, "warehouse", sizes["warehouse"]))
    found.append(_all_ran(entries, runs))
    found.append(_once_each(entries, runs))
    found.append(Finding(not audit, "the audit is clean", "; ".join(audit) or "nothing is held, parked or lost"))
    return found


def limit_steps(entries: Sequence[Entry], key: str, size: int) -> list[tuple[float, int]]:
    """The limit of a key over time. One that floats only ever grows here, and is noted before the store is told."""
    steps = [(entries[0].at if entries else 0.0, size)]
    for entry in entries:
        if entry.what == "size" and entry.key == key and entry.size > steps[-1][1]:
            steps.append((entry.at, entry.size))
    return steps


def _never_over(entries: Sequence[Entry], runs: Sequence[Run], key: str, size: int) -> Finding:
    limits = limit_steps(entries, key, size)
    peak, over = 0, 0
    for at, running in steps_of(runs, key):
        limit = max((limit for since, limit in limits if since <= at), default=size)
        peak, over = max(peak, running), max(over, running - limit)
    shown = " then ".join(str(limit) for _, limit in limits)
    figures = f"peak {peak} of {shown}" + (f", {over} OVER THE LIMIT" if over else "")
    return Finding(not over, f"{key} is never over", figures)


def _within_rate(entries: Sequence[Entry], runs: Sequence[Run], rate: float, burst: int) -> Finding:
    """At no time had more begun than the burst and the rate allow since the first was sent.

    A body may begin some time after it was let pass, so two may begin closer together than the rate says; but none
    begins before. One that runs again after a kill has paid already.
    """
    began = sorted({run.task_id: run.began for run in reversed(runs)}.values())
    first = min((entry.at for entry in entries if entry.what == "sent"), default=0.0)
    over = max((n - burst - int(rate * (at - first)) for n, at in enumerate(began, 1)), default=0)
    seconds = began[-1] - began[0] if len(began) > 1 else 0.0
    figures = f"{len(began) / seconds if seconds else 0:.1f} a second on average, of {rate:g} and {burst} at once"
    return Finding(over <= 0, "carrier-api keeps its rate", figures + (f", {over} TOO EARLY" if over > 0 else ""))


def _first_orders(entries: Sequence[Entry], runs: Sequence[Run], key: str, size: int) -> Finding:
    """The first order of every tenant starts within one service time of a free dock, whoever floods.

    On a machine that is slow to start bodies, time does not tell: then it is late only if more bodies of others have
    begun meanwhile than there are docks, so that each dock has gone to another once.
    """
    service = max((run.ended - run.began for run in runs if run.ended is not None and run.finished), default=0.0)
    waits, late = [], []
    for tenant in dict.fromkeys(entry.tenant for entry in entries if entry.what == "sent"):
        sent = min(entry.at for entry in entries if entry.what == "sent" and entry.tenant == tenant)
        began = min((run.began for run in runs if run.tenant == tenant), default=None)
        if began is None:
            continue  # then it is lost, which is another promise
        free = _first_free(entries, runs, key, size, sent)
        others = sum(free < run.began < began for run in runs if run.tenant != tenant)
        waits.append(max(0.0, began - free))
        if waits[-1] > service and others > limit_steps(entries, key, size)[-1][1]:
            late.append(tenant)
    figures = f"{max(waits, default=0.0):.2f} s after a dock is free at most, a service takes up to {service:.2f} s"
    promise = "every tenant's first order gets a free dock"
    return Finding(not late, promise, figures + (f", LATE: {', '.join(late)}" if late else ""))


def _first_free(entries: Sequence[Entry], runs: Sequence[Run], key: str, size: int, since: float) -> float:
    """The first moment from then on at which fewer run under the key than its limit allows."""
    limits, running, steps = limit_steps(entries, key, size), 0, steps_of(runs, key)
    for at, count in steps:
        if at <= since:
            running = count
    if running < max((limit for when, limit in limits if when <= since), default=size):
        return since
    for at, count in steps:
        if at > since and count < max((limit for when, limit in limits if when <= at), default=size):
            return at
    return since


def _all_ran(entries: Sequence[Entry], runs: Sequence[Run]) -> Finding:
    sent = {entry.task_id for entry in entries if entry.what == "sent"}
    done = {run.task_id for run in runs if run.finished}
    lost = len(sent - done)
    return Finding(not lost, "nothing is lost", f"{len(sent & done)} of {len(sent)} orders shipped")


def _once_each(entries: Sequence[Entry], runs: Sequence[Run]) -> Finding:
    """Each ran once; or again, after the worker that ran it was killed, and never beside itself."""
    killed = {entry.worker: entry.at for entry in entries if entry.what == "killed"}
    by_task: defaultdict[str, list[Run]] = defaultdict(list)
    for run in runs:
        by_task[run.task_id].append(run)
    again = [several for several in by_task.values() if len(several) > 1]
    wrong = sum(not _taken_over(several, killed) for several in again)
    figures = f"{len(by_task) - len(again)} once, {len(again)} again after the kill"
    return Finding(not wrong, "each runs exactly once", figures + (f", {wrong} TWICE" if wrong else ""))


def _taken_over(several: Sequence[Run], killed: Mapping[int, float]) -> bool:
    """`several` runs of one task, in their order: each but the last was a killed worker's, and the next began later."""
    return all(a.worker in killed and b.began >= killed[a.worker] for a, b in pairwise(several))
