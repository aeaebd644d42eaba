"""How importing the package makes every Celery app limited: the few places where Celery is hooked into.

Each hook names what it relies on, and calls what it wraps; `tests/worker/test_hooks.py` fails when a new Celery
changes one. Installing twice does nothing.
"""

from __future__ import annotations

import ctypes
import functools
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import click
from billiard.process import current_process
from celery import Celery, signals, states
from celery._state import _get_active_apps
from celery.app.amqp import AMQP
from celery.app.control import Control
from celery.exceptions import ImproperlyConfigured
from celery.utils.log import get_logger

from .app import Limits
from .errors import LimitError
from .location import OURS
from .metrics.meter import SENT_HEADER
from .publish import declared_of, make_serializable, stamp
from .store import StoreError
from .tracing import WAITS_HEADER, note_waits
from .transport import register
from .wire import HEADER
from .worker.exits import left_to_parent
from .worker.gate import WORKER_HEADER

__all__ = ["install"]

logger = get_logger(__name__)
_MARK = "__celery_limits__"
_OWN = frozenset({HEADER, SENT_HEADER, WORKER_HEADER, WAITS_HEADER})
"""What Celery takes for a custom header when it makes a retry of a request."""
PR_SET_PDEATHSIG = 1


def install() -> None:
    """Hooks into Celery's classes, and into the apps that exist already."""
    if hasattr(Celery, _MARK):
        return
    setattr(Celery, _MARK, True)
    make_serializable()
    register()
    _wrap(Celery, "__init__", _after_init)
    _wrap(Celery, "finalize", _after_finalize)
    _wrap(Celery, "_connection", _connection)
    _wrap(AMQP, "_create_task_sender", _stamping_sender)
    _wrap(Control, "revoke", _revoke)
    _wrap(Control, "revoke_by_stamped_headers", _revoke_by_stamps)
    _wrap(Control, "purge", _purge)
    Control.discard_all = Control.purge
    if "celery.bin.celery" in sys.modules:  # we were imported by the `celery` program, which has loaded its commands
        _wrap_command("purge", _purge_command)
        _wrap_command("worker", _worker_command)
    signals.task_prerun.connect(_before_body)
    signals.task_postrun.connect(_after_body)
    signals.worker_process_init.connect(_die_with_parent)
    for app in _get_active_apps():
        _equip(app)
        app.amqp.__dict__.pop("send_task_message", None)  # made before we could stamp


def _wrap(cls: type, name: str, around: Callable[..., Any]) -> None:
    original = getattr(cls, name)

    @functools.wraps(original)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        return around(original, self, *args, **kwargs)

    setattr(cls, name, wrapper)


def _wrap_command(name: str, around: Callable[..., Any]) -> None:
    """A command of the `celery` program: `celery.bin.<name>.<name>`."""
    command = getattr(sys.modules[f"celery.bin.{name}"], name)
    command.callback = functools.partial(around, command.callback)


def _worker_command(original: Any, *args: Any, **kwargs: Any) -> Any:
    """Limits, settings and URLs that can't work stop the worker with what to do about them, and no traceback."""
    try:
        return original(*args, **kwargs)
    except LimitError as error:
        raise click.ClickException(f"limits: {error}") from None
    except ImproperlyConfigured as error:
        raise click.ClickException(str(error)) from None


# -- an app comes into being --------------------------------------------------------------------------------------


def _after_init(original: Any, app: Any, *args: Any, **kwargs: Any) -> None:
    original(app, *args, **kwargs)
    _equip(app)


def _equip(app: Any) -> None:
    """`app.steps` and `app.user_options` are Celery's own ways to extend its worker."""
    from .worker import panel  # noqa: F401, PLC0415  (imports the worker, and is registered by that)
    from .worker.steps import LimitsStep, QueueMarks, SettleStep, put_before_pool  # noqa: PLC0415

    put_before_pool()
    app.steps["worker"].update((LimitsStep, SettleStep))
    app.steps["consumer"].add(QueueMarks)
    app.user_options["worker"].update(
        (
            click.Option(("--limits-store",), metavar="URL", help="The Redis that keeps the limits."),
            click.Option(("--limits-lease",), type=float, metavar="SECONDS", help="When a silent worker is dead."),
            click.Option(("--limits-namespace",), metavar="NAME", help="Apps that share limits share it."),
            click.Option(("--limits-metrics-port",), type=int, metavar="PORT", help="Where Prometheus finds figures."),
        )
    )


def _after_finalize(original: Any, app: Any, *args: Any, **kwargs: Any) -> Any:
    """Declarations are checked when all tasks are known: an unknown argument or a deadlock is an error here."""
    was = app.finalized
    result = original(app, *args, **kwargs)
    if not was and app.finalized:
        for task in list(app._tasks.values()):
            declared_of(task)
        Limits(app).check()
    return result


def _connection(original: Any, app: Any, url: Any, *args: Any, transport_options: Any = None, **kwargs: Any) -> Any:
    """Our transports know of an app's limits what these options say."""
    if isinstance(url, str) and url.startswith(OURS):
        limits = Limits(app)
        settings = limits.settings
        ours = {
            "limits_namespace": settings.namespace,
            "limits_lease": settings.lease,
            "limits_lines": limits.on_broker and settings.trust_headers,  # else the gate must see it first
        }
        transport_options = {**ours, **(transport_options or {})}
    return original(app, url, *args, transport_options=transport_options, **kwargs)


# -- publishing -------------------------------------------------------------------------------------------------------


def _stamping_sender(original: Any, amqp: Any) -> Any:
    """Every task message of an app goes through the function that this makes, whoever publishes it."""
    send, app = original(amqp), amqp.app

    def send_task_message(producer: Any, name: str, message: Any, **options: Any) -> Any:
        override = options.pop("limits", None)
        headers = options.get("headers")
        if headers and not _OWN.isdisjoint(headers):
            options["headers"] = {key: value for key, value in headers.items() if key not in _OWN}
        stamp(app, name, message, override)
        if HEADER in message.headers and Limits(app).settings.metrics_port is not None:
            message.headers[SENT_HEADER] = round(time.time(), 3)
        return send(producer, name, message, **options)

    return send_task_message


# -- revoking ---------------------------------------------------------------------------------------------------------


def _revoke(original: Any, control: Any, task_id: Any, *args: Any, **kwargs: Any) -> Any:
    """What waits in the store is ended there, at once and without a worker; workers are told as always."""
    _cancel(control.app, lambda _: task_id if isinstance(task_id, (list, tuple, set)) else [task_id])
    return original(control, task_id, *args, **kwargs)


def _revoke_by_stamps(original: Any, control: Any, headers: Any, *args: Any, **kwargs: Any) -> Any:
    _cancel(control.app, lambda limits: limits.waiting_with_stamps(headers))
    return original(control, headers, *args, **kwargs)


def _purge(original: Any, control: Any, *args: Any, **kwargs: Any) -> int:
    """What waits in the store for its limits waits for execution, and goes too."""
    purged: int = original(control, *args, **kwargs)
    waiting = _in_store(control.app, lambda limits: limits.purge(control.app.amqp.queues.consume_from))
    return purged + waiting


def _purge_command(original: Any, *args: Any, **kwargs: Any) -> None:
    """`celery purge` empties the queues by itself, without `Control.purge`."""
    original(*args, **kwargs)
    obj = click.get_current_context().obj
    names = set(kwargs["queues"] or obj.app.amqp.queues) - set(kwargs["exclude_queues"] or ())
    if purged := _in_store(obj.app, lambda limits: limits.purge(names)):
        obj.echo(f"Revoked {purged} that waited for their limits.")


def _cancel(app: Any, task_ids: Callable[[Limits], Any]) -> None:
    def cancel(limits: Limits) -> int:
        return len([limits.cancel(task_id) for task_id in task_ids(limits)])

    _in_store(app, cancel)


def _in_store(app: Any, work: Callable[[Limits], int]) -> int:
    """A store that is away, or that was never configured, must not keep the workers from being told."""
    limits = Limits(app)
    try:
        return work(limits) if limits.in_use else 0
    except (StoreError, ImproperlyConfigured) as error:
        logger.warning("limits: could not cancel in the store: %s; workers that get the task refuse it", error)
        return 0


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
    back = state == states.REJECTED and bool(retval.requeue) and bool(task.acks_late)
    Limits(task.app).releaser.release(header["ticket"], worker, header["fence"], back=back)


def _in_pool_child() -> bool:
    """Whether this is a process of a prefork pool; all others run their bodies in the worker itself."""
    return bool(current_process().name != "MainProcess")


def _die_with_parent(**_: Any) -> None:
    """A pool child whose worker was killed must not run on into another's slot: the kernel ends it too."""
    if sys.platform != "linux" or not _in_pool_child():
        return
    parent = os.getppid()
    if ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL) == 0 and os.getppid() != parent:
        os._exit(1)  # it died while we were asking
