"""Celery's pools in virtual time: one whose bodies are processes, and one of threads.

What they report, and in which order, is Celery's: a prefork pool frees the place before it reports a result, it may
report the end of a body whose process still lives, and it accepts a job when its process says that it has begun.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from celery.exceptions import Reject, Terminated, TimeLimitExceeded, WorkerLostError

from celery_limits.message.header import HEADER, WORKER_HEADER
from celery_limits.patches import asynpool
from celery_limits.patches.request import NotNow
from celery_limits.worker.passage import Event, returns_to_broker
from tests.store.actors import SECOND

from .fibers import block, run
from .requests import NotStored, VirtualRequest, reported
from .schedule import MILLISECOND, Idle, Process, Sleep, Steps, Thread

if TYPE_CHECKING:
    from .worker import VirtualWorker

__all__ = ["Job", "Pool", "ProcessPool", "ThreadPool", "new_pool"]

TIME_LIMIT = 1.0


class Job:
    """What a pool was handed. `_accept_callback` as in billiard, where `patches.asynpool` looks for the request."""

    def __init__(self, request: VirtualRequest) -> None:
        self.request = request
        self._accept_callback = request.on_accepted
        self.process: Process | None = None
        self.thread: Thread | None = None
        self.begun = self.reported = False

    def __repr__(self) -> str:
        return f"job of {self.request}"


class Pool:
    def __init__(self, worker: VirtualWorker) -> None:
        self.worker, self.story, self.schedule = worker, worker.story, worker.schedule
        self.queue: deque[Job] = deque()
        """What no process or thread has been given."""
        self.jobs: dict[Job, None] = {}
        """All that is not reported."""

    def apply(self, request: VirtualRequest) -> None:
        raise NotImplementedError

    def keeps(self, job: Job) -> bool:
        """Whether it goes on although the connection is lost that brought it."""
        raise NotImplementedError

    def flush(self) -> None:
        """The connection is lost."""

    def running(self) -> list[Job]:
        return [job for job in self.jobs if job.begun]

    def _body(self, job: Job) -> Steps:
        """The body itself; what the pool is to report of it."""
        request, story = job.request, self.story
        message, carried = request.delivery.message, request.request_dict
        request.delivery.body = life, fence = carried[WORKER_HEADER], carried[HEADER]["fence"]
        story.body_starts(self.worker, message, life, fence)
        yield Sleep(round(story.duration() * SECOND))
        request.delivery.body = None
        if message.late and message.queue and story.rejects():
            return True, reported(Reject(requeue=True)), 0.1
        story.body_ends(message)
        return False, None, 0.1

    def _after_body(self, request: VirtualRequest, result: tuple[bool, Any, float]) -> None:
        """As `install._after_body`, where the process or thread of the body releases."""
        carried = request.request_dict
        event = Event.REJECTED if result[0] else Event.RESULT
        back = returns_to_broker(event, acknowledged=not request.task.acks_late, requeue=True)
        releaser = self.worker.releaser_of(self)
        releaser.release(carried[HEADER]["ticket"], carried[WORKER_HEADER], carried[HEADER]["fence"], back=back)


class ProcessPool(Pool):
    """Prefork. What its processes send is heard by the event loop."""

    def __init__(self, worker: VirtualWorker) -> None:
        super().__init__(worker)
        self.by_pid: dict[int, Process] = {}
        self.idle: deque[Process] = deque(self._fork() for _ in range(worker.habits.places))

    def _fork(self) -> Process:
        parent = self.worker.process
        child = Process(f"{parent.name} child", parent.rate, parent=parent)
        self.by_pid[len(self.by_pid) + 1] = child
        child.pid = len(self.by_pid)
        return child

    def is_gone(self, pid: int) -> bool:
        return pid == self.worker.pid or not self.by_pid[pid].alive

    def apply(self, request: VirtualRequest) -> None:
        if request.revoked():
            self.worker.free_place()
            return
        job = Job(request)
        self.jobs[job] = None
        self.queue.append(job)
        self.write()

    def write(self) -> None:
        """To the processes that are free."""
        while self.queue and self.idle:
            process, job = self.idle.popleft(), self.queue.popleft()
            job.process = process
            if not process.alive:  # its parent does not know yet, and the job is in its pipe
                continue
            job.thread = self.schedule.start(self._run(job), process)

    def _run(self, job: Job) -> Steps:
        worker = self.worker
        yield Sleep(self.story.dice.choice((1, 100, MILLISECOND, 50 * MILLISECOND)))
        job.begun = True
        assert job.process is not None
        worker.hears(self._accept, job, job.process.pid)
        assert job.thread is not None
        worker.bodies[job.thread] = job.request.delivery
        result = yield from self._body(job)
        if not worker.parent_is_there:
            yield from run(self._after_body, job.request, result)
        worker.hears(self._ready, job, result)

    # -- in the event loop ----------------------------------------------------------------------------------------

    def _accept(self, job: Job, pid: int) -> None:
        if job in self.jobs:
            job._accept_callback(pid, 0.0)

    def _ready(self, job: Job, result: Any) -> None:
        if job not in self.jobs:
            return
        gate = self.worker.gate
        report = partial(self._report, job, result)
        if gate.parent_releases:
            gate.exchange.run(report, self.write)
        else:
            report()
            self.write()

    def _report(self, job: Job, result: Any) -> None:
        """Celery frees the place first."""
        self._ends(job)
        assert job.process is not None
        if job.process.alive:
            self.idle.append(job.process)
        self.worker.free_place()
        job.request.on_success(result)

    def _ends(self, job: Job) -> None:
        self.jobs.pop(job, None)
        if job.thread is not None:
            self.worker.bodies.pop(job.thread, None)
        self.worker.is_settled(job.request.delivery)

    # -- killed -------------------------------------------------------------------------------------------------------

    def kill(self, job: Job, error: Exception | None = None) -> None:
        """The process of a job dies, and its parent hears of that a little later."""
        process = job.process
        if process is None or not process.alive:
            return
        process.alive = False
        if job.thread is not None:
            self.worker.bodies.pop(job.thread, None)
        message = job.request.delivery.message
        message.excused = True
        if job.begun and not message.late:
            message.fate = message.fate or "lost"
        self.worker.say(f"the process of {message.ticket} is killed")
        delay = self.story.dice.choice((0.0, 0.001, 0.05))
        self.schedule.after(delay, self.worker.hears, self._lost, process, error or WorkerLostError("killed"))

    def _lost(self, process: Process, error: Exception) -> None:
        """What it had not begun with is given to another; or, if it was terminated meanwhile, the pool accepts it in
        its own name and ends it."""
        self.idle.append(self._fork())
        if process in self.idle:
            self.idle.remove(process)
        for job in [job for job in self.jobs if job.process is process]:
            if job.begun:
                self._ends(job)
                self.worker.free_place()
                job.request.on_failure(reported(error))
            elif job.request.terminated:
                self._ends(job)
                self.worker.free_place()
                job._accept_callback(self.worker.pid, 0.0)
                job.request.on_failure(reported(Terminated("15")))
            else:
                job.process = None
                self.queue.appendleft(job)
        self.write()

    def time_out(self, job: Job) -> None:
        """A hard time limit: Celery is told first, the process is killed then. Waits in the event loop for nobody."""
        if job not in self.jobs or not job.begun or job.reported:
            return
        job.reported = True
        job.request.delivery.message.excused = True
        process = job.process
        assert process is not None
        self.jobs.pop(job)
        self.worker.say(f"{job.request} runs out of time")
        job.request.on_failure(reported(TimeLimitExceeded(TIME_LIMIT)))
        job.request.on_timeout(False, TIME_LIMIT)
        self.worker.free_place()
        delay = self.story.dice.choice((0.001, 0.02, 0.3))
        self.schedule.after(delay, self._end_process, job, process)

    def _end_process(self, job: Job, process: Process) -> None:
        process.alive = False
        if job.thread is not None:
            self.worker.bodies.pop(job.thread, None)
        self.worker.hears(self._lost, process, WorkerLostError("timed out"))
        self.worker.hears(self.worker.is_settled, job.request.delivery)

    # -- the connection is lost -------------------------------------------------------------------------------------

    def keeps(self, job: Job) -> bool:
        return job.process is not None and job.process.alive

    def flush(self) -> None:
        for job in [job for job in self.jobs if not self.keeps(job) and not job.begun]:
            if job in self.queue:
                self.queue.remove(job)
            self._ends(job)
            self.worker.in_hand.pop(job.request.delivery, None)
            asynpool._release(job)


class ThreadPool(Pool):
    """What a thread reports, it does itself."""

    def __init__(self, worker: VirtualWorker) -> None:
        super().__init__(worker)
        self.threads = [self.schedule.start(self._live(), worker.process) for _ in range(worker.habits.places)]

    def apply(self, request: VirtualRequest) -> None:
        if request.revoked():
            return
        job = Job(request)
        self.jobs[job] = None
        self.queue.append(job)
        for thread in self.threads:
            self.schedule.wake(thread)

    def _live(self) -> Steps:
        while True:
            if self.queue:
                yield from run(self._run, self.queue.popleft())
            else:
                yield Idle(5 * SECOND)

    def _run(self, job: Job) -> None:
        """As Celery's `apply_target`. Whatever else `on_accepted` raises ends the thread's turn without a word."""
        request, me = job.request, self.schedule.current
        assert me is not None
        job.thread = me
        self.story.faults.asks_in_thread(job)
        try:
            request.on_accepted(self.worker.pid, 0.0)
        except (NotNow, NotStored):
            self.jobs.pop(job, None)
            self.worker.is_settled(request.delivery)
            return
        job.begun = True
        self.worker.bodies[me] = request.delivery
        steps = self._body(job)
        try:
            step = next(steps)
            while True:
                step = steps.send(block(step))
        except StopIteration as end:
            result = end.value
        self._after_body(request, result)
        self.worker.bodies.pop(me, None)
        self.jobs.pop(job, None)
        request.on_success(result)
        self.worker.is_settled(request.delivery)

    def keeps(self, job: Job) -> bool:
        return True


def new_pool(worker: VirtualWorker) -> Pool:
    return (ProcessPool if worker.habits.forked else ThreadPool)(worker)
