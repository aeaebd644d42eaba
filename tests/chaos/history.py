"""The ledger as a history: calls with their runs, and faults with the time in which they were felt."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tests.chaos.ledger import Line
from tests.chaos.world import keys_of

__all__ = ["DOOMED", "Called", "Felt", "History", "Run", "read"]

DOOMED = frozenset({"kill", "kill all", "quit"})
"""What a worker does not come back from: it is felt until there is nothing of it any more."""


@dataclass
class Run:
    """A body that was started. `last` is its last sign of life: it ran at least until then."""

    call: str
    run: str
    pid: int
    worker: str
    retries: int
    at: float
    last: float
    started: Line
    ended: bool = False
    torn: str = ""
    asked: float = 0.0
    """When it began to publish its retry."""
    lines: list[Line] = field(default_factory=list)

    @property
    def keys(self) -> dict[str, int]:
        return keys_of(self.started.more["names"], self.started.more["weight"])


@dataclass
class Called:
    """A call: what was meant, and all that the ledger says of it."""

    name: str
    meant: Line
    published: Line | None = None
    revoked: Line | None = None
    result: Line | None = None
    runs: list[Run] = field(default_factory=list)
    accepted: list[Line] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)

    @property
    def spec(self) -> dict[str, Any]:
        return self.meant.more

    @property
    def outcome(self) -> tuple[str, str]:
        """What its result says, if it was asked for: the status, and the name of the exception."""
        return (self.result.more["status"], self.result.more["error"]) if self.result else ("", "")

    @property
    def finals(self) -> list[Run]:
        return [run for run in self.runs if run.ended and run.retries == self.spec["retries"]]


@dataclass(frozen=True)
class Felt:
    """A fault: what, to which worker (none: to Redis, and so to all), from when to when; `pid`: to one of its pool."""

    kind: str
    worker: str
    at: float
    until: float
    line: Line
    pid: int = 0


@dataclass
class History:
    calls: dict[str, Called] = field(default_factory=dict)
    faults: list[Felt] = field(default_factory=list)
    audits: list[Line] = field(default_factory=list)
    steers: dict[str, list[tuple[float, float, int]]] = field(default_factory=lambda: defaultdict(list))
    """Sizes that a key was given by hand, from when to when."""
    pauses: dict[str, list[tuple[float, float, int]]] = field(default_factory=lambda: defaultdict(list))
    wall: float = 0.0
    """The time of day at the last line."""
    deployed: float = float("inf")
    replaced: float = float("inf")
    """When the last worker was replaced in the deploy."""
    modes: dict[str, str] = field(default_factory=dict)
    shifts: dict[str, float] = field(default_factory=dict)
    """By how much the clock of a worker is ahead."""

    @cached_property
    def by_worker(self) -> dict[str, list[Felt]]:
        """To be asked for when all is read."""
        found: dict[str, list[Felt]] = defaultdict(list)
        for fault in self.faults:
            found[fault.worker].append(fault)
        return found

    @cached_property
    def runs_in(self) -> dict[str, list[Run]]:
        """By worker, as `by_worker`."""
        found: dict[str, list[Run]] = defaultdict(list)
        for run in self.runs:
            found[run.worker].append(run)
        return found

    @property
    def runs(self) -> list[Run]:
        return [run for call in self.calls.values() for run in call.runs]


def read(lines: list[Line]) -> History:
    history = History()
    runs: dict[str, Run] = {}
    begun: dict[tuple[str, str], Line] = {}
    for line in lines:
        history.wall = max(history.wall, line.wall)
        if line.call:
            _of_a_call(history, runs, line)
        elif line.what in ("fault", "mended"):
            _of_a_fault(history, begun, line)
        elif line.what in ("steers", "steered"):
            _of_steering(history, line)
        elif line.what in ("lost", "losing", "gone"):
            history.faults.append(Felt(line.what, line.more["worker"], line.at, line.at, line))
        elif line.what == "starved":
            _of_starving(history, line)
        elif line.what == "begins":
            history.modes[line.more["worker"]] = line.more["mode"]
            history.shifts[line.more["worker"]] = line.more.get("shift", 0.0)
        elif line.what == "deployed":
            history.replaced = line.at
        elif line.what == "audit":
            history.audits.append(line)
    return history


def _of_starving(history: History, line: Line) -> None:
    """A moment between two long waits is not enough to be heard of."""
    worker, since = line.more["worker"], line.at - line.more["seconds"]
    for fault in history.faults:
        if fault.kind == "starved" and fault.worker == worker and since - 0.5 <= fault.until <= line.at:
            history.faults.remove(fault)
            since = min(since, fault.at)
            break
    history.faults.append(Felt("starved", worker, since, line.at, line))


def _of_a_fault(history: History, begun: dict[tuple[str, str], Line], line: Line) -> None:
    """One that lasts is felt until it is mended; if that is not known, for ever."""
    kind, worker = line.more["kind"], line.more["worker"]
    if line.what == "mended":
        first = begun.pop((kind, worker))
        history.faults = [felt for felt in history.faults if felt.line is not first]
        history.faults.append(Felt(kind, worker, first.at, line.at, first))
        return
    lasts = bool(line.more["seconds"])
    pid = line.more.get("child", 0)
    until = float("inf") if lasts or (kind in DOOMED and worker) or (kind == "kill child" and not pid) else line.at
    history.faults.append(Felt(kind, worker, line.at, until, line, pid))
    if lasts:
        begun[kind, worker] = line
    if kind == "deploy":
        history.deployed = line.at


def _of_steering(history: History, line: Line) -> None:
    """Of several at one key the first to be mended is the first that was done: none is taken to be over too early."""
    steers = (history.pauses if line.more["kind"] == "pause" else history.steers)[line.more["key"]]
    if line.what == "steers":
        steers.append((line.at, float("inf"), line.more["size"]))
    else:
        under_way = next(steer for steer in steers if steer[1] == float("inf"))
        steers[steers.index(under_way)] = (under_way[0], line.at, under_way[2])


def _of_a_call(history: History, runs: dict[str, Run], line: Line) -> None:
    if line.what == "means":
        history.calls[line.call] = Called(line.call, line)
    call = history.calls[line.call]
    call.lines.append(line)
    if line.what == "published":
        call.published = line
    elif line.what == "revoking":
        call.revoked = line
    elif line.what == "result":
        call.result = line
    elif line.what == "accepted":
        call.accepted.append(line)
    elif line.what == "start":
        more = line.more
        run = Run(line.call, more["run"], line.pid, more["worker"], more["retries"], line.at, line.at, line)
        runs[run.run] = run
        call.runs.append(run)
    if "run" in line.more:
        run = runs[line.more["run"]]
        run.last = line.at
        run.lines.append(line)
        run.ended = run.ended or line.what == "end"
        if line.what == "retry":
            run.asked = line.at
        if line.what == "torn":
            run.torn = line.more["by"]
