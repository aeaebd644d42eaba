"""The checker: holds a history to the guarantees. It reads the ledger, and nothing that the system itself says.

Each check counts what it looked at. Where the ledger can't decide (a stated exception, a fault that explains what is
seen) the case is excused, and the excuse is counted by name.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from tests.chaos.fleet import GRANT, LEASE
from tests.chaos.history import ENDING, Called, Felt, History, Run
from tests.chaos.ledger import Line
from tests.chaos.world import NEW, OLD, rate_of, size_of

__all__ = ["CHECKS", "Check", "Violation", "check_all", "outstanding"]

SETTLED = 30.0
"""Seconds after which nobody runs any more who was admitted before a limit was lowered."""

CUT_OFF = frozenset({"stop", "cut off", "half-open", "lost"})
"""What a worker comes back from: it was taken for dead, and what it had was given to others."""

REDIS = frozenset({"redis killed", "redis paused", "redis away"})

WAKE = 2 * LEASE
"""Seconds after a kill in which what the dead had may still be on its way back."""


@dataclass(frozen=True)
class Violation:
    check: str
    text: str
    lines: tuple[Line, ...]

    def __str__(self) -> str:
        return "\n".join([f"{self.check}: {self.text}", *(f"    {line}" for line in self.lines)])


@dataclass
class Check:
    """What one guarantee came to: so many looked at, these excused, those wrong."""

    name: str
    looked: int = 0
    excused: Counter[str] = field(default_factory=Counter)
    violations: list[Violation] = field(default_factory=list)

    def wrong(self, text: str, lines: Iterable[Line]) -> None:
        self.violations.append(Violation(self.name, text, tuple(lines)))


def _felt(history: History, worker: str, since: float, until: float, kinds: frozenset[str] = ENDING) -> list[Felt]:
    """Faults of these kinds that this worker felt in this time."""
    return [
        fault for fault in history.faults
        if fault.worker == worker and fault.kind in kinds and fault.at <= until and fault.until >= since
    ]  # fmt: skip


# -- 1: never over -------------------------------------------------------------------------------------------------


def never_over(history: History, check: Check) -> None:
    """At every start, what runs under each of its keys is within the size in force."""
    by_key: dict[str, list[Run]] = defaultdict(list)
    for run in history.runs:
        for key in run.keys:
            by_key[key].append(run)
    for key, runs in by_key.items():
        runs.sort(key=lambda run: run.at)
        for position, run in enumerate(runs):
            check.looked += 1
            beside = [other for other in runs[: position + 1] if other.last > run.at or other is run]
            allowed = _allowed(history, key, run.at)
            if _weight(beside, key) > allowed:
                _judge_over(history, check, key, run, beside, allowed)


def _weight(runs: list[Run], key: str) -> int:
    return sum(run.keys[key] for run in runs)


def _allowed(history: History, key: str, at: float) -> int:
    """The largest size that was in force when any of those that run now may have been admitted."""
    sizes = [size_of(key, OLD)]
    if at >= history.deployed:
        sizes.append(size_of(key, NEW))
    sizes += [size for begun, ended, size in history.steers[key] if begun <= at <= ended + SETTLED]
    return max(sizes)


def _judge_over(history: History, check: Check, key: str, run: Run, beside: list[Run], allowed: int) -> None:
    """A worker that was cut off for longer than its lease, or stopped, is the stated exception of guarantee 1."""
    counted, excuses = [], []
    for other in beside:
        excuse = _cut_off(history, other)
        if excuse:
            excuses.append(excuse)
        else:
            counted.append(other)
    if _weight(counted, key) <= allowed:
        check.excused[f"beside a worker: {excuses[0]}"] += 1
        return
    lines = sorted((line for other in beside for line in other.lines), key=lambda line: line.at)
    check.wrong(f"{_weight(beside, key)} of {allowed} at {key!r} when {run.call} starts", lines)


def _cut_off(history: History, run: Run) -> str:
    """Why the body counts for nothing any more, if it was in such a worker."""
    kinds = {"stop"} if history.modes.get(run.worker) == "terminate" else {"stop", "cut off", "half-open"}
    if faults := _felt(history, run.worker, run.at, run.last, frozenset(kinds)):
        return faults[0].kind
    if _felt(history, run.worker, run.at, run.last + LEASE, frozenset({"lost"})):
        return "its lease was lost, as it said"
    return ""


def exactly_full(history: History, check: Check) -> None:
    """Only counted: keys whose whole room was in use at some time."""
    peaks: Counter[str] = Counter()
    by_key: dict[str, list[Run]] = defaultdict(list)
    for run in history.runs:
        for key in run.keys:
            by_key[key].append(run)
    for key, runs in by_key.items():
        for run in runs:
            peaks[key] = max(peaks[key], _weight([o for o in runs if o.at <= run.at < o.last or o is run], key))
    check.looked = sum(peak >= size_of(key, OLD) for key, peak in peaks.items())


# -- 5: nothing lost -----------------------------------------------------------------------------------------------


def outstanding(history: History) -> list[Called]:
    """Calls that must still end."""
    return [call for call in history.calls.values() if call.published and not _fate(history, call)]


def _fate(history: History, call: Called) -> str:
    """How a call ended; empty when it has not."""
    spec = call.spec
    if call.finals:
        return "ended"
    if call.revoked:
        return "revoked"
    if "expires" in spec:
        return "expired"
    if spec["hard"] and call.runs:
        return "out of time"
    return "" if spec["late"] else _early_fate(history, call)


def _early_fate(history: History, call: Called) -> str:
    """Acknowledged before it began: one that is killed has had its only chance."""
    if call.runs:
        last = max(call.runs, key=lambda run: run.retries)
        if last.torn == "Retry":
            return ""
        if last.torn or _felt(history, last.worker, last.at, last.last + WAKE):
            return "begun and killed"
    for line in call.accepted:
        if _felt(history, line.more["worker"], line.at - 1, line.at + WAKE):
            return "killed as it began"
    return ""


def nothing_lost(history: History, check: Check) -> None:
    for call in history.calls.values():
        if call.published is None:
            check.excused["nobody knows whether it was published"] += 1
            continue
        check.looked += 1
        fate = _fate(history, call)
        if not fate:
            check.wrong(f"{call.name} never ended", call.lines)
        elif fate != "ended":
            check.excused[fate] += 1


def ends_once(history: History, check: Check) -> None:
    """More than one run of a message has a reason: the first was killed, or its worker was taken for dead."""
    for call in history.calls.values():
        by_retries: dict[int, list[Run]] = defaultdict(list)
        for run in call.runs:
            by_retries[run.retries].append(run)
        for runs in by_retries.values():
            check.looked += 1
            if len(runs) < 2:
                continue
            if reason := _why_again(history, call, runs[-1]):
                check.excused[f"again: {reason}"] += 1
            else:
                check.wrong(f"{call.name} ran {len(runs)} times, and no fault explains it", call.lines)


def _why_again(history: History, call: Called, last: Run) -> str:
    for run in call.runs:
        if run is not last and (faults := _felt(history, run.worker, run.at - LEASE, last.at)):
            return faults[0].kind
    if faults := _felt(history, last.worker, call.meant.at, last.at, CUT_OFF):
        return f"{faults[0].kind}, with the message in its hands, while another ran it"
    published = call.published.at if call.published else last.at
    moments = [(call.meant.at, published), *((run.at, run.last + 1) for run in call.runs if run.torn == "Retry")]
    if any(_felt(history, "", since, until, REDIS) for since, until in moments):
        return "published while Redis was away"
    for run in call.runs:
        told_to_go = _felt(history, run.worker, run.at, last.at, frozenset({"term", "deploy term"}))
        if run is not last and told_to_go and _felt(history, "", run.last, run.last + WAKE, REDIS):
            return "Redis was away when its worker, about to go, had to acknowledge it"
    return ""


# -- 6, 8, 9 and rates ---------------------------------------------------------------------------------------------


def unchanged(history: History, check: Check) -> None:
    """What was meant arrives, however often it was parked, put back and delivered again."""
    for call in history.calls.values():
        for run in call.runs:
            check.looked += 1
            for name, meant, found in _compare(call, run):
                if meant != found:
                    check.wrong(f"{name} of {call.name} is {found!r}, not {meant!r}", [call.meant, run.started])


def _compare(call: Called, run: Run) -> list[tuple[str, object, object]]:
    spec, said = call.spec, run.started.more
    pairs: list[tuple[str, object, object]] = [
        ("names", spec["names"], said["names"]),
        ("weight", spec["weight"], said["weight"]),
        ("task_id", call.name, said["id"].rpartition("-")[2]),
        ("retries", True, said["retries"] <= spec["retries"]),
    ]
    if said["retries"] == 0:
        pairs.append(("headers", call.name, said["extra"]))
    if "priority" in spec:
        pairs.append(("priority", spec["priority"], said["priority"]))
    if spec["members"]:
        pairs.append(("results", sorted(spec["members"]), said["results"]))
    return pairs


def in_turn(history: History, check: Check) -> None:
    """Those who came to a line while it was held start in the order in which they came."""
    lines: dict[str, list[Called]] = defaultdict(list)
    for call in history.calls.values():
        if call.spec["line"] and call.published:
            lines[call.spec["line"]].append(call)
    for holder, *members in lines.values():
        held = [run for run in holder.runs if members and run.last > members[-1].published.at]  # type: ignore[union-attr]
        if not held or not all(member.runs for member in members):
            continue
        members.sort(key=lambda member: member.published.at)  # type: ignore[union-attr]
        for first, second in pairwise(members):
            check.looked += 1
            if second.runs[0].at < first.runs[0].at:
                if _disturbed(history, held[0].last, first.runs[0].at):
                    check.excused["a fault while they were let go"] += 1
                elif first.runs[0].at - held[0].last > GRANT:
                    check.excused["its turn was over before a worker took it"] += 1
                else:
                    check.wrong(f"{second.name} starts before {first.name}", [*first.lines, *second.lines])


def _disturbed(history: History, since: float, until: float) -> bool:
    return any(fault.at <= until and fault.until + WAKE >= since for fault in history.faults)


def no_body_before_its_eta(history: History, check: Check) -> None:
    for call in history.calls.values():
        for run in call.runs if "eta" in call.spec else ():
            check.looked += 1
            if run.started.wall < call.spec["eta"] - 0.01:
                check.wrong(f"{call.name} starts before its eta {call.spec['eta']:.3f}", [call.meant, run.started])


def within_the_rate(history: History, check: Check) -> None:
    """Up to any start, no more messages have passed than the burst and the time since the first was published allow."""
    passed: dict[str, list[tuple[float, Called]]] = defaultdict(list)
    begun: dict[str, float] = {}
    for call in history.calls.values():
        if api := call.spec["names"].get("api"):
            key = f"api:{api}"
            begun[key] = min(begun.get(key, call.meant.at), call.meant.at)
            seen = {run.retries: run for run in reversed(call.runs)}
            passed[key] += [(run.at, call) for run in seen.values()]
    for key, starts in passed.items():
        per_second, burst = rate_of(key)
        for count, (at, call) in enumerate(sorted(starts, key=lambda start: start[0]), 1):
            check.looked += 1
            if count > burst + per_second * (at - begun[key]) + 1:
                check.wrong(
                    f"{call.name} is number {count} at {key!r}, {at - begun[key]:.3f} s after the first", call.lines
                )


def sound_on_the_way(history: History, check: Check) -> None:
    """Audits while all this goes on. A dead worker's traces are found until they are swept; anything else is wrong."""
    for line in history.audits:
        check.looked += 1
        for found in line.more["findings"]:
            kind = found.partition(":")[0]
            if kind in ("lapsed-lease", "orphan"):
                check.excused[kind] += 1
            else:
                check.wrong(found, [line])


def workers_stay(history: History, check: Check) -> None:
    """None ends unless it was told to, or killed."""
    check.looked = len(history.modes)
    for fault in history.faults:
        if fault.kind == "gone":
            check.wrong(f"{fault.worker} ended by itself", [fault.line])


CHECKS: dict[str, Callable[[History, Check], None]] = {
    "1 never over": never_over,
    "2 exactly full": exactly_full,
    "3-4 sound on the way": sound_on_the_way,
    "5 nothing lost": nothing_lost,
    "5 ends once": ends_once,
    "6 unchanged": unchanged,
    "8 in turn": in_turn,
    "9 not before its eta": no_body_before_its_eta,
    "rates": within_the_rate,
    "workers stay": workers_stay,
}


def check_all(history: History) -> list[Check]:
    checks = []
    for name, examine in CHECKS.items():
        check = Check(name)
        examine(history, check)
        checks.append(check)
    return checks
