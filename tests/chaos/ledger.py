"""The ledger: what happened, written by those to whom it happened, in a file that no Redis or broker ever sees.

A line is one append, so the order of the lines is the order of events across all processes. Times are of the machine's
monotonic clock, which all processes share; `wall` is for what is promised in wall-clock time.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Ledger", "Line"]

_wall = time.time  # this one, also where the clock is moved later


@dataclass(frozen=True, slots=True)
class Line:
    """`what` happened when, in which process, to which call; and what else is to be known."""

    what: str
    at: float
    wall: float
    pid: int
    call: str
    more: dict[str, Any]

    def __str__(self) -> str:
        more = " ".join(f"{name}={value!r}" for name, value in self.more.items())
        return f"{self.at:.3f} {self.what:10} {self.call:12} pid={self.pid} {more}"


class Ledger:
    """Append-only. One object may be used from several threads."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def note(self, what: str, call: str = "", **more: Any) -> None:
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            line = json.dumps([what, time.monotonic(), _wall(), os.getpid(), call, more]) + "\n"
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)

    def lines(self) -> list[Line]:
        return list(self.follow(0)) if self.path.exists() else []

    def follow(self, start: int) -> Iterator[Line]:
        """The whole lines that begin at this byte or later: what was the end of the file may be amid a line, which the
        system writes page by page."""
        with self.path.open("rb") as file:
            if start > 0:
                file.seek(start - 1)
                file.readline()
            for raw in file:
                if not raw.endswith(b"\n"):
                    return  # its rest may be there when one reads on, and is no line
                yield Line(*json.loads(raw))
