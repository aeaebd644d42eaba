"""What really happened, as the bodies wrote it: a file of JSON lines, apart from Redis.

Each line is one append, and its time is the machine's monotonic clock, which all processes share. A body notes its
start when it has its slots and its end before it gives them back: what the ledger shows at once was there at once.
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

__all__ = ["Entry", "Ledger", "Run", "runs_of", "steps_of"]


@dataclass(frozen=True)
class Entry:
    """`what` is sent, start, end, size (of a floating limit) or killed; `worker` is the worker's process id."""

    what: str
    at: float
    task_id: str = ""
    tenant: str = ""
    worker: int = 0
    key: str = ""
    size: int = 0


class Ledger:
    """The same class serves the bodies, which write, and the play, which reads on from where it was."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = 0
        self._entries: list[Entry] = []

    def note(self, what: str, **fields: Any) -> None:
        """Adds a line; the fields are those of an `Entry`."""
        line = json.dumps(asdict(Entry(what, time.monotonic(), **fields))) + "\n"
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)

    def entries(self) -> list[Entry]:
        """All lines so far, by their time."""
        if self.path.exists():
            with self.path.open("rb") as file:
                file.seek(self._read)
                for line in file:
                    if not line.endswith(b"\n"):  # it is being written
                        break
                    self._read += len(line)
                    self._entries.append(Entry(**json.loads(line)))
        return sorted(self._entries, key=lambda entry: entry.at)


@dataclass(frozen=True)
class Run:
    """One run of one body. `ended` is None where it has not, `finished` False where its worker was killed."""

    task_id: str
    tenant: str
    worker: int
    began: float
    ended: float | None = None
    finished: bool = False

    @property
    def keys(self) -> tuple[str, ...]:
        """What it held a slot of."""
        return (f"tenant:{self.tenant}", "warehouse")


def runs_of(entries: Iterable[Entry]) -> list[Run]:
    """The runs, in the order in which they began. What a killed worker ran ended with it."""
    found: list[Run] = []
    open_runs: dict[tuple[str, int], Entry] = {}
    for entry in entries:
        if entry.what == "start":
            open_runs[entry.task_id, entry.worker] = entry
        elif entry.what == "end" and (start := open_runs.pop((entry.task_id, entry.worker), None)):
            found.append(Run(start.task_id, start.tenant, start.worker, start.at, entry.at, True))
        elif entry.what == "killed":
            for name, start in [item for item in open_runs.items() if item[1].worker == entry.worker]:
                del open_runs[name]
                found.append(Run(start.task_id, start.tenant, start.worker, start.at, entry.at))
    found += [Run(start.task_id, start.tenant, start.worker, start.at) for start in open_runs.values()]
    return sorted(found, key=lambda run: run.began)


def steps_of(runs: Iterable[Run], key: str) -> list[tuple[float, int]]:
    """How many bodies ran under a key: each moment at which that changed, and the number from then on."""
    changes: defaultdict[float, int] = defaultdict(int)
    for run in runs:
        if key in run.keys:
            changes[run.began] += 1
            if run.ended is not None:
                changes[run.ended] -= 1
    return list(_summed(sorted(changes.items())))


def _summed(changes: Iterable[tuple[float, int]]) -> Iterator[tuple[float, int]]:
    running = 0
    for at, change in changes:
        running += change
        yield at, running
