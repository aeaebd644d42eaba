"""How importing the package makes every Celery app of the process limited. Installing twice does nothing.

This is the only module above all layers: it applies the patches that publishers need, connects the signals of the
processes that run bodies, and makes kombu know our URLs. A worker applies the patches of its own when it starts.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from importlib import import_module
from typing import Any

from billiard.process import current_process
from celery import Celery, signals, states
from celery._state import _get_active_apps

from .app import Limits
from .app.stamp import make_serializable
from .dispatch.release import left_to_parent
from .message.header import HEADER, WORKER_HEADER
from .patches import apply, celery_app, control, publishing
from .telemetry.tracing import note_waits
from .transport import register
from .worker.passage import Event, returns_to_broker

__all__ = ["install"]

_MARK = "__celery_limits__"
PR_SET_PDEATHSIG = 1


def install() -> None:
    """Hooks into Celery's classes, and into the apps that exist already."""
    if hasattr(Celery, _MARK):
        return
    setattr(Celery, _MARK, True)
    make_serializable()
    register()
    for module in (celery_app, publishing, control):
        apply(module)
    control.extend_control()
    if "celery.bin.celery" in sys.modules:  # we were imported by the `celery` program, which has loaded its commands
        import_module("celery_limits.worker.panel")  # so that `celery inspect` and `celery control` know our commands
        apply(import_module("celery_limits.patches.commands"))
    signals.task_prerun.connect(_before_body)
    signals.task_postrun.connect(_after_body)
    signals.worker_process_init.connect(_know_own_tasks)
    signals.worker_process_init.connect(_die_with_parent)
    for app in _get_active_apps():
        celery_app.equip(app)
        app.amqp.__dict__.pop("send_task_message", None)  # made before we could stamp


# -- in the process that runs bodies ------------------------------------------------------------------------------


def _before_body(task: Any = None, **_: Any) -> None:
    note_waits(task.request)


def _after_body(task: Any = None, state: Any = None, retval: Any = None, **_: Any) -> None:
    """The result is stored: the slots are given back before anything else happens, in the process that ran the body; or
    by its parent, who is waiting for its result."""
    request = task.request
    note_waits(request)
    worker, header = getattr(request, WORKER_HEADER, None), getattr(request, HEADER, None)
    if worker is None or header is None:  # the gate writes both
        return
    ended_by = sys.exc_info()[1]
    told_to_end = ended_by is not None and not isinstance(ended_by, Exception)
    if (told_to_end or left_to_parent()) and _in_pool_child():
        return  # a process that was told to end does not know whether the message comes again: its parent does
    event = Event.REJECTED if state == states.REJECTED else Event.RESULT
    requeue = event is Event.REJECTED and bool(retval.requeue)
    back = returns_to_broker(event, acknowledged=not task.acks_late, requeue=requeue)
    Limits(task.app).releaser.release(header["ticket"], worker, header["fence"], back=back)


def _in_pool_child() -> bool:
    """Whether this is a process of a prefork pool; all others run their bodies in the worker itself."""
    return bool(current_process().name != "MainProcess")


def _know_own_tasks(**_: Any) -> None:
    """A pool child that was spawned, not forked, has not imported the task that refreshes floating limits."""
    import_module("celery_limits.worker.refresh")


def _die_with_parent(**_: Any) -> None:
    """A pool child whose worker was killed must not run on into another's slot: the kernel ends it too."""
    if sys.platform != "linux" or not _in_pool_child():
        return
    parent = os.getppid()
    if ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL) == 0 and os.getppid() != parent:
        os._exit(1)  # it died while we were asking
