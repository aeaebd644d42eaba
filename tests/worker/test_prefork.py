"""What our hooks make of Celery's prefork pool, by itself and without a worker around it.

Each test runs in a process of its own: one that has other threads, as that of the tests may, had better not fork.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from fcntl import ioctl
from pathlib import Path
from tempfile import TemporaryDirectory
from termios import FIONREAD
from typing import Any

from celery.concurrency.asynpool import AsynPool
from kombu.asynchronous import Hub

from celery_limits.patches import apply, asynpool
from celery_limits.worker import prefork
from tests.waiting import DEADLINE, wait_until

ROOT = Path(__file__).parents[2]

NUMBERS = 2
"""File numbers below those of the pool that are free again when a connection is lost."""

LONG = 1_000_000
"""Bytes: more than any pipe holds."""


class Looped:
    """A pool and the event loop that it is registered with."""

    def __init__(self, processes: int) -> None:
        self._taken = [os.open(os.devnull, os.O_RDONLY) for _ in range(NUMBERS)]
        self.hub = Hub()
        self.pool: Any = AsynPool(processes, threads=False)
        self.register()
        self.turn_until(lambda: len(self.pool._all_inqueues) == processes, "all processes are up")

    def register(self) -> None:
        self.pool.register_with_event_loop(self.hub)
        self._loop = self.hub.create_loop()
        self.hub.call_later(0.01, self._tick)

    def _tick(self) -> None:
        """So that the loop does not wait for anything else."""
        self.hub.call_later(0.01, self._tick)

    def turn_until(self, is_so: Callable[[], bool], what: str) -> None:
        def turn() -> bool:
            next(self._loop)
            return is_so()

        wait_until(turn, what)

    def reconnect(self) -> None:
        """What a worker does with its pool when the connection to the broker is lost, and is there again."""
        while self._taken:
            os.close(self._taken.pop())
        self.hub.reset()
        self.pool.flush()
        self.register()

    def sleep_in(self, process: Any) -> None:
        """The process begins with a job that does not end."""
        others = {other.inqW_fd for other in self.pool._pool if other is not process} - self.pool._busy_workers
        self.pool._busy_workers |= others
        job = self.pool.apply_async(time.sleep, (60,))
        self.turn_until(job.accepted, "it has begun")
        self.pool._busy_workers -= others
        assert job._write_to is process

    def close(self) -> None:
        for process in self.pool._pool:
            os.kill(process.pid, signal.SIGKILL)  # one may wait for somebody to read its result
        self.pool.terminate()
        self.pool.join()
        self.hub.close()


TESTS: dict[str, Callable[[Looped], None]] = {}


def with_two_processes(test: Callable[[Looped], None]) -> Callable[[Path], None]:
    """Runs it apart, with a pool of two."""
    TESTS[test.__name__] = test

    def run_apart(tmp_path: Path) -> None:
        output = tmp_path / "output"
        with output.open("wb") as file:
            command = [sys.executable, "-m", "tests.worker.test_prefork", test.__name__]
            process = subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=file, start_new_session=True)
            try:
                code = process.wait(3 * DEADLINE)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        assert code == 0, output.read_text()

    return run_apart


def main(name: str) -> None:
    apply(asynpool)
    looped = Looped(2)
    try:
        TESTS[name](looped)
    finally:
        looped.close()


def kill(process: Any) -> None:
    os.kill(process.pid, signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)


@with_two_processes
def test_a_process_that_is_ending_when_the_pool_gets_a_new_event_loop(two: Looped) -> None:
    """Its end was noticed, and it could not be waited for yet; then the broker's connection was lost. The pool watches
    it again, and replaces it."""
    process = two.pool._pool[0]
    os.kill(process.pid, signal.SIGKILL)
    two.pool._untrack_child_process(process, two.hub)  # what the pool does when it hears of the end
    two.hub.reset()
    two.register()
    two.turn_until(lambda: process not in two.pool._pool and len(two.pool._pool) == 2, "another is in its place")


@with_two_processes
def test_processes_that_die_with_their_jobs_while_the_connection_is_lost(two: Looped) -> None:
    """The pipes of the new ones have the numbers of the old ones, but not each the one that it had. The pool reads from
    those of results alone, and its jobs reach their processes."""
    processes = sorted(two.pool._pool, key=lambda process: process.inqW_fd)
    for process in processes:
        two.sleep_in(process)
    for process in processes:
        kill(process)
    two.reconnect()
    assert not {*processes} & {*two.pool._pool}
    assert {*two.pool._fileno_to_outq} == {process.outqR_fd for process in two.pool._pool}
    assert not {*two.hub.readers} & {process.inq._reader.fileno() for process in two.pool._pool}
    jobs = [two.pool.apply_async(pow, (2, n)) for n in range(6)]
    two.turn_until(lambda: all(job.ready() for job in jobs), "all jobs are done")
    assert [job.get() for job in jobs] == [1, 2, 4, 8, 16, 32]


@with_two_processes
def test_a_job_that_was_sent_to_a_dead_process_when_the_connection_is_lost(two: Looped) -> None:
    """Its message comes again. The process that gets the pipe of the dead one must not find it there, and run it."""
    process = two.pool._pool[0]
    kill(process)
    with TemporaryDirectory() as directory:
        ran = Path(directory, "ran")
        job = two.pool.apply_async(os.mkdir, (str(ran),))
        prefork.write_now(two.pool, two.hub, process.inqW_fd)
        assert job._write_to is process
        two.reconnect()
        two.turn_until(lambda: len(two.pool._all_inqueues) == 2, "another process is up")
        for each in two.pool._pool:
            two.sleep_in(each)
        assert not ran.exists()


@with_two_processes
def test_the_file_by_which_a_process_was_watched_is_closed_with_its_pipes(two: Looped) -> None:
    process = two.pool._pool[0]
    two.sleep_in(process)
    watched = process._sentinel_poll
    kill(process)
    two.reconnect()
    assert process._sentinel_poll is None
    assert watched not in two.hub.readers


@with_two_processes
def test_a_result_that_is_half_read_when_the_connection_is_lost(two: Looped) -> None:
    """Longer than what a pipe holds, so it comes in parts. The rest of it is read as such, and the process goes on."""
    job = two.pool.apply_async(bytes, (LONG,))
    two.turn_until(lambda: job._write_to is not None, "it is sent to a process")
    process = job._write_to
    wait_until(lambda: unread(process) > LONG // 100, "the process writes its result")
    os.kill(process.pid, signal.SIGSTOP)
    two.turn_until(lambda: unread(process) == 0, "what is there of it is read")
    two.reconnect()
    os.kill(process.pid, signal.SIGCONT)
    two.turn_until(job.ready, "all of it is read")
    assert job.get() == bytes(LONG)
    jobs = [two.pool.apply_async(pow, (2, n)) for n in range(6)]
    two.turn_until(lambda: all(job.ready() for job in jobs), "all jobs are done")


def unread(process: Any) -> int:
    """Bytes that wait in the pipe of its results."""
    found = bytearray(4)
    ioctl(process.outqR_fd, FIONREAD, found)
    return int.from_bytes(found, sys.byteorder)


if __name__ == "__main__":
    main(sys.argv[1])
