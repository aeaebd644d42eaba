"""Histories for the checker's own tests, written by hand."""

from __future__ import annotations

from typing import Any

from tests.chaos.checker import check_all
from tests.chaos.history import read
from tests.chaos.ledger import Line
from tests.chaos.world import size_of

__all__ = ["NARROW", "Tale"]

NARROW = next(f"{n}" for n in range(99) if size_of(f"tenant:{n}", "old") == size_of(f"tenant:{n}", "new") == 1)
"""A tenant of whom one body may run at once, before and after the deploy."""


class Tale:
    """Writes a ledger by hand; each line comes a step after the one before."""

    step = 0.1

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.clock = 100.0
        self._runs = 0
        for worker, mode in (("w1@chaos", "terminate"), ("w2@chaos", "continue")):
            self.say("begins", worker=worker, mode=mode)

    def say(self, what: str, call: str = "", **more: Any) -> None:
        self.clock += self.step
        self.lines.append(Line(what, self.clock, self.clock, 1, call, more))

    def publish(self, call: str, *, late: bool = True, names: dict[str, str] | None = None, **more: Any) -> None:
        spec = {"late": late, "names": names or {"tenant": NARROW}, "weight": 1, "retries": 0, "line": None}
        self.say("means", call, **{**spec, "hard": False, "members": None, "together": None, **more})
        self.say("published", call)

    def start(self, call: str, worker: str = "w1@chaos", names: dict[str, str] | None = None, **more: Any) -> str:
        self._runs += 1
        run = f"run{self._runs}"
        said = {"names": names or {"tenant": NARROW}, "weight": 1, "extra": call, "priority": 0, "retries": 0}
        self.say("start", call, **{"run": run, "id": f"x-1-{call}", "worker": worker, **said, **more})
        return run

    def end(self, call: str, run: str) -> None:
        self.say("end", call, run=run)

    def live(self, call: str, *args: Any, **more: Any) -> None:
        self.end(call, self.start(call, *args, **more))

    def answer(self, call: str, status: str, error: str = "NoneType") -> None:
        """Its result is asked for."""
        self.say("result", call, status=status, error=error)

    def fault(self, kind: str, worker: str = "", seconds: float = 0.0, child: int = 0) -> None:
        self.say("fault", kind=kind, worker=worker, seconds=seconds, child=child)

    def mend(self, kind: str, worker: str = "", seconds: float = 0.0) -> None:
        """`seconds` later than the last line."""
        self.clock += seconds
        self.say("mended", kind=kind, worker=worker, seconds=seconds)

    def wrong(self) -> dict[str, int]:
        return {check.name: len(check.violations) for check in check_all(read(self.lines)) if check.violations}

    def excused(self) -> dict[str, int]:
        return {name: count for check in check_all(read(self.lines)) for name, count in check.excused.items()}
