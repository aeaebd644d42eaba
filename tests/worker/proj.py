"""The Celery app under test: tasks with limits of every kind, whose bodies do what the test tells them.

A worker imports it with its configuration in the environment; a test calls `build` with the same one. A body notes its
start in the ledger of its stage, waits at the latch that has its name, and then ends in the way that it was told.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import time
from collections.abc import Callable
from typing import Any

from billiard.process import current_process
from celery import Celery, signals
from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded

from celery_limits import Concurrency, Debounce, FloatingConcurrency, RateLimit
from tests.worker.killing import kill_who_stands_still
from tests.worker.stage import Stage

__all__ = ["CONF", "app", "build"]

CONF = "LIMITS_TEST_CONF"
"""The environment variable that has the configuration, as JSON."""


class Flaky(Exception):
    """What `autoretry_for` retries."""


class Opaque:
    """A result that JSON can't say."""


def _first(task: Any) -> bool:
    """Whether this is the first time that this task id runs, by retry, redelivery or any other way."""
    return len([entry for entry in _stage(task).starts() if entry.task_id == task.request.id]) == 1


def _stage(task: Any, key: str = "") -> Stage:
    """Workers outlive tests, so each test has a stage of its own, named by the first part of its keys."""
    return _stage_of(task.app, key or task.request.kwargs["key"])


def _stage_of(app: Any, key: str) -> Stage:
    return Stage(os.path.join(app.conf.stage, key.partition(":")[0]))


def _retry(task: Any, countdown: float) -> None:
    if task.request.retries == 0:
        raise task.retry(countdown=countdown, max_retries=3)


def _raise(error: BaseException) -> None:
    raise error


def _fail_once(task: Any) -> None:
    if task.request.retries == 0:
        raise Flaky("the first time always fails")


def _requeue_once(task: Any) -> None:
    if _first(task):
        raise Reject("not today", requeue=True)


def _kill_once(task: Any) -> None:
    if _first(task):
        os.kill(os.getpid(), signal.SIGKILL)


def _run_out_once(task: Any) -> None:
    if _first(task):
        raise MemoryError("as told")


def _replace(task: Any, by: str) -> None:
    """`by` may be the task itself, which needs the very slot that this one still holds."""
    kwargs = {"key": task.request.kwargs["key"], "name": "replacement"}
    raise task.replace(task.app.tasks[by].si(**kwargs).set(queue=task.request.delivery_info["routing_key"]))


ENDINGS: dict[str, Callable[[Any], Any]] = {
    "return": lambda task: None,
    "fail": lambda task: _raise(RuntimeError("as told")),
    "retry": lambda task: _retry(task, 0),
    "retry-later": lambda task: _retry(task, 0.4),
    "retry-much-later": lambda task: _retry(task, 2.5),
    "flaky": _fail_once,
    "ignore": lambda task: _raise(Ignore()),
    "reject": lambda task: _raise(Reject("as told", requeue=False)),
    "requeue": _requeue_once,
    "replace": lambda task: _replace(task, "plain"),
    "replace-limited": lambda task: _replace(task, task.name),
    "die": lambda task: os.kill(os.getpid(), signal.SIGKILL),
    "die-once": _kill_once,
    "exit": lambda task: _raise(SystemExit(1)),
    "memory": _run_out_once,
    "opaque": lambda task: Opaque(),
}


def play(task: Any, key: str, name: str, how: str = "return") -> Any:
    """The body of most tasks."""
    stage, request = _stage(task, key), task.request
    stage.enter(name, key, request.id, retries=request.retries, worker=request.hostname)
    try:
        stage.pass_through(name)
        return ENDINGS[how](task) if how in ENDINGS else how
    except SoftTimeLimitExceeded:
        stage.note("soft", name, key, request.id)
        raise
    finally:
        stage.note("end", name, key, request.id)


def deaf(task: Any, key: str, name: str, how: str = "return") -> Any:
    """A body that does not heed the signal which is to end it, until the latch `<name>-heeds` opens.

    Then it ends as if nothing had been, or, told to "leave", as the signal says.
    """
    stage, request = _stage(task, key), task.request
    stage.enter(name, key, request.id, retries=request.retries)
    try:
        stage.pass_through(name)
    except SystemExit:
        stage.note("signalled", name, key, request.id)
        stage.pass_through(f"{name}-heeds")
        if how == "leave" and _first(task):
            raise
    finally:
        stage.note("end", name, key, request.id)


def quick(task: Any, key: str, name: str, how: str = "return") -> Any:
    """The same, without a latch."""
    stage, request = _stage(task, key), task.request
    stage.enter(name, key, request.id, retries=request.retries)
    try:
        return ENDINGS[how](task) if how in ENDINGS else how
    finally:
        stage.note("end", name, key, request.id)


def timed(task: Any, key: str, name: str, how: str = "0") -> None:
    """A body that takes `how` seconds."""
    stage = _stage(task, key)
    stage.note("start", name, key, task.request.id)
    time.sleep(float(how))
    stage.note("end", name, key, task.request.id)


def selfish(task: Any, key: str, name: str, how: str = "return") -> Any:
    """A body that never lets a greenlet of another task run, until its latch opens."""
    stage, request = _stage(task, key), task.request
    stage.enter(name, key, request.id, retries=request.retries, worker=request.hostname)
    stage.pass_through(name, sleep=lambda seconds: ctypes.CDLL(None).usleep(int(seconds * 1e6)))
    stage.note("end", name, key, request.id)


def plain(task: Any, key: str, name: str) -> str:
    """Without limits; the key only names the stage."""
    _stage(task, key).note("start", name, "", task.request.id)
    return name


def _register(app: Any, name: str, body: Callable[..., Any], **options: Any) -> None:
    app.task(bind=True, name=name, shared=False, **options)(body)


def _without_limits(app: Any) -> Any:
    """What a worker does that does not import the package, as far as others can tell."""
    for steps in app.steps.values():
        steps -= {step for step in steps if str(step).startswith("celery_limits.")}
    _register(app, "plain", plain)
    return app


def build(conf: dict[str, Any]) -> Any:
    """An app of its own with this configuration. `conf["stage"]` is where the stages of all tests are."""
    app: Any = Celery("proj", set_as_current=False)
    app.conf.update(
        limits_place_ttl=5.0,
        limits_grant_timeout=5.0,
        worker_hijack_root_logger=False,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        broker_connection_retry_on_startup=True,
        task_default_retry_delay=0,
    )
    app.conf.update(conf)
    if conf.get("plain"):
        return _without_limits(app)
    one = [Concurrency("{key}", 1)]
    for acks in ("early", "late"):
        late = {"acks_late": acks == "late"}
        _register(app, acks, play, limits=one, **late)
        _register(app, f"{acks}.flaky", play, limits=one, autoretry_for=(Flaky,), default_retry_delay=0, **late)
        _register(app, f"{acks}.stubborn", play, limits=one, reject_on_worker_lost=True, **late)
        _register(app, f"{acks}.retried", play, limits=one, retry_on_worker_lost=True, default_retry_delay=0, **late)
        _register(app, f"{acks}.deaf", deaf, limits=one, **late)
        _register(app, f"{acks}.quick", quick, limits=one, autoretry_for=(Flaky,), max_retries=0, **late)
    _register(app, "picky", play, limits=[Concurrency("{key}", 1, on_full="discard")])
    _register(app, "short", play, limits=[Concurrency("{key}", 1, max_waiting=1)])
    _register(app, "staged", play, limits=[Concurrency("outer:{key}", 5), Concurrency("{key}", 1)])
    _register(app, "newest", play, limits=[Concurrency("{key}", 1, on_full="replace")])
    _register(app, "newest.late", play, acks_late=True, limits=[Concurrency("{key}", 1, on_full="replace")])
    _register(app, "urgent", play, limits=[Concurrency("{key}", 1, on_full="preempt")])
    _register(app, "urgent.deaf", deaf, acks_late=True, limits=[Concurrency("{key}", 1, on_full="preempt")])
    _register(app, "calm", quick, limits=[Debounce("calm:{key}", 0.5, at_most=2), Concurrency("{key}", 1)])
    _register(app, "pair", play, limits=[Concurrency("{key}", 2)])
    growing = FloatingConcurrency("{key}", default=1, refresh="tests.worker.sizes:size_of", every=0.5)
    _register(app, "floating", play, limits=[growing])
    _register(app, "rated", quick, limits=[RateLimit("rate:{key}", "20/s")])
    _register(app, "slow", quick, rate_limit="5/s", limits=[Concurrency("{key}", 5)])
    _register(app, "timed", timed)
    _register(app, "selfish", selfish, limits=one)
    if conf.get("crossing"):
        _register(app, "there", plain, limits=[Concurrency("left", 1), Concurrency("right", 1)])
        _register(app, "back", plain, limits=[Concurrency("right", 1), Concurrency("left", 1)])
    _register(app, "free", play)
    _register(app, "free.flaky", play, autoretry_for=(Flaky,), default_retry_delay=0)
    _register(app, "free.late", play, acks_late=True)
    _register(app, "plain", plain)
    return app


@signals.worker_process_init.connect
def wait_to_be_let_in(**_: Any) -> None:
    """A process of a pool is not up before the latch opens that the configuration names, if it names one."""
    if app is not None and (door := app.conf.get("door")):
        Stage(os.path.dirname(door)).pass_through(os.path.basename(door))


@signals.task_revoked.connect
def note_revoked(sender: Any = None, request: Any = None, **told: Any) -> None:
    """What a handler of the user's hears, with all that it is told."""
    kwargs = getattr(request, "kwargs", None)
    if app is not None and isinstance(kwargs, dict) and "key" in kwargs and os.path.isdir(app.conf.stage):
        told.pop("signal", None)
        known = {"task": sender.name, "args": list(request.args), "pool": current_process().name != "MainProcess"}
        _stage_of(app, kwargs["key"]).note("revoked", kwargs["name"], kwargs["key"], request.id, **told, **known)


app: Any = None
if CONF in os.environ:
    app = build(json.loads(os.environ[CONF]))
    if when := app.conf.get("kills"):
        kill_who_stands_still(when)
