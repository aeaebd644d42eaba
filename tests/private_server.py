"""What every private server of the tests has in common: started and waited for, paused, stopped, killed, started again.

Its data, log and whatever else it writes are in a directory of its own, which outlives `stop` and `kill` so that
`restart` finds it, and goes with `close`. It is only ever ended by the ids of its processes.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import psutil

from tests.waiting import DEADLINE, wait_until

__all__ = ["PrivateServer"]

S = TypeVar("S", bound="PrivateServer")


class PrivateServer:
    """Usable as a context manager. A kind of server says how it is launched (`_launch`) and whether it answers."""

    start_seconds = DEADLINE
    stop_seconds = 10.0

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self._family: set[psutil.Process] = set()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} pid={self._process and self._process.pid} in {self.directory}>"

    def __enter__(self: S) -> S:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _launch(self) -> subprocess.Popen[bytes]:
        raise NotImplementedError

    def _answers(self) -> bool:
        raise NotImplementedError

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self!r} is not running"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def log(self) -> str:
        return (self.directory / "log.txt").read_text(errors="replace")

    def _popen(self, *command: str, env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
        with open(self.directory / "log.txt", "ab") as log:
            return subprocess.Popen(
                command,
                env=env,
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # a Ctrl-C is for the tests
            )

    def start(self: S, *, within: float | None = None) -> S:
        """Starts it and waits until it answers, loading its data included."""
        assert self._process is None, f"{self!r} is running already"
        self._process = self._launch()
        wait_until(self._is_ready, f"{self!r} answers", within=within or self.start_seconds)
        self._note_family()
        return self

    def _is_ready(self) -> bool:
        if not self.is_running:
            raise AssertionError(f"{self!r} ended by itself:\n{self.log()[-3000:]}")
        return self._answers()

    def _note_family(self) -> None:
        """A server may be a shell that waits for another program, with helpers of its own."""
        if self.is_running:
            parent = psutil.Process(self.pid)
            self._family |= {parent, *parent.children(recursive=True)}

    def stop(self) -> None:
        """Ends it as an operator would; kills it if that does not help. No-op when it is not running."""
        if (process := self._process) is None:
            return
        self.resume()
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(self.stop_seconds)
        self.kill()

    def kill(self) -> None:
        """SIGKILL to every process of it: nothing flushed, nothing said."""
        if self._process is None:
            return
        self._signal(signal.SIGKILL)
        self._process.wait()
        wait_until(lambda: not any(map(_acts, self._family)), f"{self!r} is gone")
        self._family.clear()
        self._process = None

    def restart(self: S, *, within: float | None = None) -> S:
        """The same data and address, whether it was stopped, killed or is still running."""
        self.stop()
        return self.start(within=within)

    def pause(self) -> None:
        """Connected and silent, as a server on a stuck machine; until `resume`."""

        def stands_still() -> bool:
            self._signal(signal.SIGSTOP)
            return all(map(_is_stopped, self._family))

        wait_until(stands_still, f"{self!r} stands still")

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None, f"{self!r} is not running"
        self._note_family()
        for process in self._family:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)  # psutil knows when the id belongs to another by now

    def close(self) -> None:
        """Nothing of it is left."""
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)


def _is_stopped(process: psutil.Process) -> bool:
    """With each of its threads, or gone."""
    if not _acts(process):
        return True
    try:
        threads = list(Path(f"/proc/{process.pid}/task").iterdir())
        states = [(thread / "stat").read_text().rpartition(")")[2].split()[0] for thread in threads]
    except (FileNotFoundError, ProcessLookupError):  # one is ending
        return False
    return all(state in "TtZX" for state in states)


def _acts(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
