"""The checker: holds a history to the guarantees. It reads the ledger, and nothing that the system itself says.

Each check counts what it looked at. Where the ledger can't decide (a stated exception, a fault that explains what is
seen) the case is excused, and the excuse is counted by name.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from celery.states import FAILURE, REVOKED

from tests.chaos.excuses import (
    ENDED,
    REDIS,
    SILENT,
    WIRES,
    begun_and_ended,
    counts_for_nothing,
    excuse_for_chord,
    excuse_for_loss_of,
    felt,
    struck,
    why_again,
)
from tests.chaos.fleet import GRANT, LEASE
from tests.chaos.history import DOOMED, Called, Felt, History, Run
from tests.chaos.ledger import Line
from tests.chaos.world import NEW, OLD, rate_of, size_of

__all__ = ["CHECKS", "Check", "Violation", "check_all", "outstanding"]

SETTLED = GRANT + LEASE
"""Seconds after which nobody begins any more who was given a slot before a limit was lowered: a turn that is not taken
is over by then."""

WAKE = 2 * LEASE
"""Seconds after a kill in which what the dead had may still be on its way back."""


MANY = 3
"""Calls of which one at least gets to a worker that is not struck, in seconds."""

EVERYBODY = REDIS | {"kill all"}
"""What keeps all workers from their work at once."""


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


# -- 1: never over -------------------------------------------------------------------------------------------------


def never_over(history: History, check: Check) -> None:
    """At every start, what runs under each of its keys is within the size in force."""
    for key, run, beside in _starts(history):
        check.looked += 1
        if _weight(beside, key) > _size(history, key, run.at):
            _judge_over(history, check, key, run, beside)


def _starts(history: History) -> Iterator[tuple[str, Run, list[Run]]]:
    """Each start under each of its keys, and who runs under that key then, the one that starts included."""
    by_key: dict[str, list[Run]] = defaultdict(list)
    for run in history.runs:
        for key in run.keys:
            by_key[key].append(run)
    for key, runs in by_key.items():
        beside: list[Run] = []
        for run in sorted(runs, key=lambda run: run.at):
            beside = [*(other for other in beside if other.last > run.at), run]
            yield key, run, beside


def _weight(runs: list[Run], key: str) -> int:
    return sum(run.keys[key] for run in runs)


def _size(history: History, key: str, at: float, *, lately: float = 0.0) -> int:
    """The size in force: the declared one, or the largest that it was raised to; `lately`: or was until then."""
    sizes = [size_of(key, OLD if at < history.deployed else NEW)]
    if history.deployed <= at <= history.replaced + lately:  # messages and workers of both sorts are about
        sizes.append(size_of(key, OLD))
    sizes += [size for begun, ended, size in history.steers[key] if begun <= at <= ended + lately]
    return max(sizes)


def _judge_over(history: History, check: Check, key: str, run: Run, beside: list[Run]) -> None:
    """The stated exceptions of guarantee 1: a limit that was lowered, a worker that alone was cut off, or stopped. A
    message brings its limits along, so that of one that was published before the deploy is still the old one."""
    allowed = _size(history, key, run.at, lately=SETTLED)
    if any(history.calls[other.call].meant.at < history.replaced for other in beside):
        allowed = max(allowed, size_of(key, OLD))
    if _weight(beside, key) <= allowed:
        check.excused["given its slot, or published, before the limit was lowered"] += 1
        return
    excuses = {other.run: counts_for_nothing(history, other, run.at) for other in beside}
    if _weight([other for other in beside if not excuses[other.run]], key) <= allowed:
        kinds = "+".join(sorted({excuse for excuse in excuses.values() if excuse}))
        check.excused[f"beside a worker that counts for nothing: {kinds}"] += 1
        return
    lines = [line for other in beside for line in other.lines]
    lines += [fault.line for other in beside for fault in felt(history, other.worker, other.at, other.last, SILENT)]
    text = f"{_weight(beside, key)} of {allowed} at {key!r} when {run.call} starts"
    check.wrong(text, sorted(lines, key=lambda line: line.at))


def exactly_full(history: History, check: Check) -> None:
    """Only counted: keys whose whole room was in use at some time."""
    full = {key for key, _, beside in _starts(history) if _weight(beside, key) >= size_of(key, OLD)}
    check.looked = len(full)


# -- 5: nothing lost -----------------------------------------------------------------------------------------------


def outstanding(history: History) -> list[Called]:
    """Calls that must still end."""
    return [call for call in history.calls.values() if call.published and not _fate(history, call)]


def _fate(history: History, call: Called) -> str:
    """How a call ended; empty when it has not. One that did not run must say why."""
    spec, (status, error) = call.spec, call.outcome
    if spec.get("alien"):
        return "refused" if status == FAILURE else ""
    if call.finals:
        return "ended"
    if call.revoked and status == REVOKED:
        return "revoked"
    if "expires" in spec and (status == REVOKED or _dropped(history, call)):
        return "expired"
    if spec["hard"] and error == "TimeLimitExceeded":
        return "out of time"
    return excuse_for_chord(history, call) if spec["late"] else excuse_for_loss_of(history, call)


def _dropped(history: History, call: Called) -> bool:
    """Whether RabbitMQ may have dropped it, which tells nobody: it has expired, and what was begun of it was ended by a
    fault."""
    if not call.spec.get("silent") or history.wall < call.spec["expires"]:
        return False
    return all(begun_and_ended(history, run) for run in call.runs)


def nothing_lost(history: History, check: Check) -> None:
    for call in history.calls.values():
        if call.published is None:
            check.excused["nobody knows whether it was published"] += 1
            continue
        check.looked += 1
        fate = _fate(history, call)
        if not fate:
            check.wrong(f"{call.name} never ended", call.lines)
        elif fate not in ("ended", "refused"):
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
            if reason := why_again(history, call, runs[-1]):
                check.excused[f"again: {reason}"] += 1
            else:
                check.wrong(f"{call.name} ran {len(runs)} times, and no fault explains it", call.lines)


def no_silent_bypass(history: History, check: Check) -> None:
    """A message whose limits can't be understood never runs, and its result says why."""
    for call in history.calls.values():
        if call.spec.get("alien"):
            check.looked += 1
            if call.runs:
                check.wrong(f"{call.name} ran, whose limits nobody here understands", call.lines)
            elif call.result and call.outcome != (FAILURE, "CorruptChain"):
                check.wrong(f"{call.name} was refused for another reason", call.lines)


# -- 6 to 9 and rates ----------------------------------------------------------------------------------------------


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


def no_cross_blocking(history: History, check: Check) -> None:
    """While some wait at a key that is paused, those who need nothing of it start. How soon, a busy machine can't
    promise; but of several that were published in the first half of a pause, one does before its end."""
    published = [call for call in history.calls.values() if call.published and not call.spec.get("alien")]
    for key, pauses in history.pauses.items():
        kind, _, name = key.partition(":")
        for begun, ended, _ in pauses:
            if ended - begun < LEASE:  # the end of the load has cut it short
                continue
            came = [
                call for call in published if begun < call.meant.at < (begun + ended) / 2 and "eta" not in call.spec
            ]
            waiting = [call for call in came if call.spec["names"].get(kind) == name and _starts_at(call) > ended]
            others = [call for call in came if call.spec["names"].get(kind) != name]
            passed = [call for call in others if _starts_at(call) < ended]
            check.looked += len(passed) if waiting else 0
            if waiting and len(others) >= MANY and not passed:
                if fault := _disturbed(history, begun, ended, EVERYBODY):
                    check.excused[f"nobody ran: {fault}"] += 1
                else:
                    lines = [call.meant for call in (*waiting, *others)]
                    check.wrong(f"{len(others)} did not start while {key!r} was paused", lines)


def _starts_at(call: Called) -> float:
    return min((run.at for run in call.runs), default=float("inf"))


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
                # One that was ended or silent may have had the first of them; the ledger does not know who had it.
                if kind := _disturbed(history, held[0].last, first.runs[0].at, ENDED | SILENT | REDIS):
                    check.excused[f"{kind} while they were let go"] += 1
                elif first.runs[0].at - held[0].last > GRANT:
                    check.excused["its turn was over before a worker took it"] += 1
                else:
                    check.wrong(f"{second.name} starts before {first.name}", [*first.lines, *second.lines])


def _disturbed(history: History, since: float, until: float, kinds: frozenset[str]) -> str:
    """What went on in this time, or shortly before."""
    for fault in history.faults:
        felt_until = fault.at if fault.kind in DOOMED else fault.until
        if fault.kind in kinds and fault.at <= until and felt_until + WAKE >= since:
            return fault.kind
    return ""


def no_body_before_its_eta(history: History, check: Check) -> None:
    for call in history.calls.values():
        for run in call.runs if "eta" in call.spec else ():
            check.looked += 1
            early = call.spec["eta"] - 0.01 - run.started.wall
            if 0 < early <= history.shifts.get(run.worker, 0.0):
                check.excused["its worker's clock was ahead"] += 1
            elif early > 0:
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
            kind, _, about = found.partition(": ")
            if kind == "lapsed-lease" and struck(history, about.partition("/")[0], line.at):
                check.excused["lapsed-lease of a worker that was struck"] += 1
            else:
                check.wrong(found, [line])


def workers_stay(history: History, check: Check) -> None:
    """None ends unless it was told to, or killed; and none loses its lease that was not silent for that long."""
    check.looked = len(history.modes)
    for fault in history.faults:
        if fault.kind == "gone":
            check.wrong(f"{fault.worker} ended by itself", [fault.line])
        elif fault.kind == "lost":
            _judge_lost(history, check, fault)


def _judge_lost(history: History, check: Check, fault: Felt) -> None:
    if kind := struck(history, fault.worker, fault.at, SILENT):
        check.excused[f"lost its lease: {kind}"] += 1
    else:
        faults = felt(history, fault.worker, fault.at - 30, fault.at, ENDED | SILENT | WIRES)
        check.wrong(f"{fault.worker} lost its lease, and was not silent", [*(each.line for each in faults), fault.line])


CHECKS: dict[str, Callable[[History, Check], None]] = {
    "1 never over": never_over,
    "2 exactly full": exactly_full,
    "3-4 sound on the way": sound_on_the_way,
    "5 nothing lost": nothing_lost,
    "5 ends once": ends_once,
    "6 unchanged": unchanged,
    "7 no cross-blocking": no_cross_blocking,
    "8 in turn": in_turn,
    "9 not before its eta": no_body_before_its_eta,
    "10 no silent bypass": no_silent_bypass,
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
