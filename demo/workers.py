"""Worker processes: started, killed and stopped, each a group of processes of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

__all__ = ["PLACES", "Worker"]

PLACES = 6
"""Processes in the pool of each worker."""

ROOT = Path(__file__).parent.parent
STOP_SECONDS = 20.0


class Worker:
    """`celery -A demo.shop worker`, with its log in the directory of the run."""

    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        self.log_file = directory / f"worker-{name}.log"
        options = ["--without-gossip", "--without-mingle", "-c", str(PLACES), "-n", f"{name}@demo", "-l", "info"]
        with self.log_file.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "celery", "-A", "demo.shop", "worker", *options],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.killed = False

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    @property
    def is_ready(self) -> bool:
        if self._process.poll() is not None and not self.killed:
            raise SystemExit(f"worker {self.name} ended by itself; {self.log_file} says:\n{self.log[-2000:]}")
        return " ready." in self.log

    def kill(self) -> None:
        """SIGKILL to every process of it: when this returns no line of its code will run any more."""
        self.killed = True
        os.killpg(self.pid, signal.SIGKILL)

    def stop(self) -> None:
        """Warmly; by force if that takes too long."""
        if self._process.poll() is None:
            self._process.terminate()
        deadline = time.monotonic() + STOP_SECONDS
        while self._process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
