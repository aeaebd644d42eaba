"""Reporting that a task ended in the store: revoked, expired, discarded or superseded while it waited.

Builds the request that a worker would have built from the parked message, whatever its serializer, compression and
protocol, and reports as a worker does for a revoked task: result, chord, the event `task-revoked`, the signal
`task_revoked`. Works in any process that has the app, with or without a worker.

Relies on `celery.worker.request.Request` and on `hybrid_to_proto2` of `celery.worker.strategy`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery import signals
from celery.app.task import Context
from celery.utils.log import get_logger
from kombu.exceptions import ContentDisallowed
from kombu.message import Message
from kombu.serialization import prepare_accept_content

from celery_limits.message.envelope import Envelope, unpack
from celery_limits.printable import printable
from celery_limits.store import Store, StoreError
from celery_limits.store.outcomes import Claimed, Ended, superseded_by
from celery_limits.telemetry.meter import meter
from celery_limits.transport.refused import MISREAD

__all__ = ["defer_report", "report_all", "report_end", "send_events_with"]

logger = get_logger(__name__)

FIRST_PAUSE = 10.0
"""Seconds after which a report that failed is tried again; each further failure doubles it."""

LONGEST_PAUSE = 600.0

SendEvent = Callable[..., None]
_SENDER = "_celery_limits_send_event"
"""The attribute of an app that has its `SendEvent`, which refers to the app."""


def send_events_with(app: Any, send: SendEvent) -> None:
    """A worker sends the events of this process, if it sends events at all."""
    setattr(app, _SENDER, send)


def request_of(app: Any, envelope: Envelope) -> Any:
    """The request that a worker would have built from the message."""
    from celery.worker.request import Request  # noqa: PLC0415  (a publisher need not load the worker)
    from celery.worker.strategy import hybrid_to_proto2  # noqa: PLC0415

    headers = {name: value for name, value in envelope.headers.items() if name != "compression"}  # it is unpacked
    message: Any = Message(
        body=envelope.body,
        content_type=envelope.content_type,
        content_encoding=envelope.content_encoding,
        delivery_info={"exchange": "", "routing_key": envelope.queue},
        properties=envelope.properties,
        headers=headers,
        accept=prepare_accept_content(app.conf.accept_content),
    )
    body, decoded, utc = message.body, False, app.uses_utc_timezone()
    if "args" in message.payload:  # protocol 1
        body, headers, decoded, utc = hybrid_to_proto2(message, message.payload)
    task = app.tasks.get(headers["task"]) or _stand_in(app, headers["task"])
    return Request(message, app=app, task=task, body=body, headers=headers, decoded=decoded, utc=utc)


def _stand_in(app: Any, name: str) -> Any:
    """For a task that this process does not know, such as a program that only revokes."""
    task = app.Task()
    task.name = name
    return task


def _read(app: Any, envelope: Envelope) -> tuple[Any, Any, bool]:
    """Task, context and whether its result is stored. The body is foreign input: where it cannot be read, the headers
    have to do."""
    try:
        request = request_of(app, envelope)
        return request.task, request._context, request.store_errors
    except ContentDisallowed:  # by this process's configuration: another one may read it
        raise
    except MISREAD:
        name = str(envelope.headers.get("task"))
        task, context = app.tasks.get(name) or _stand_in(app, name), Context(envelope.headers)
        return task, context, not (context.ignore_result or task.ignore_result)


def report_end(app: Any, ticket: str, message: bytes, reason: str) -> None:
    """Reports one ended ticket. An error means that its result, or its chord, was not told."""
    task, context, stored = _read(app, unpack(message))
    name, expired = f"{printable(task.name)}[{printable(context.id)}]", reason == "expired"
    kind, _, by = reason.partition(" ")  # 'superseded <task id>', or one word
    if by:
        reason = superseded_by(by)
    try:
        task.backend.mark_as_revoked(context.id, reason, request=context, store_result=stored)
    except MISREAD as error:  # a chord or callbacks that are none: no other try would end better
        logger.error("limits: %s %s, but its callbacks could not be told: %r", name, printable(reason), error)
    if (to := meter()) is not None:
        to.ended(task.name, kind)
    logger.info("limits: %s %s while it waited in the store (ticket %s)", name, printable(reason), printable(ticket))
    told = {"terminated": False, "signum": None, "expired": expired}
    signals.task_revoked.send(sender=task, request=context, **told)
    if not task.send_events:
        return
    try:
        send: SendEvent = getattr(app, _SENDER, _send_event)
        send(app, "task-revoked", uuid=context.id, **told)
        if by:
            send(app, "limit-superseded", uuid=context.id, name=task.name, ticket=ticket, by=by)
    except Exception as error:  # the result is stored, and must not be stored again for want of a monitor
        logger.warning("limits: could not send task-revoked of %s: %r", name, error)


def _send_event(app: Any, name: str, /, **fields: Any) -> None:
    """From a process without a worker, which can't know whether workers send events: so it always does."""
    with app.events.default_dispatcher() as dispatcher:
        dispatcher.send(name, **fields)


def report_all(app: Any, store: Store, ended: tuple[Ended, ...], reason: str) -> None:
    """Reports and settles what a cancel has ended. What fails stays in the outbox for a worker to try again."""
    for entry in ended:
        try:
            report_end(app, entry.ticket, entry.message, reason)
        except Exception as error:
            defer_report(store, entry, reason, error)
        else:
            store.settle([entry])


def defer_report(store: Store, entry: Ended | Claimed, reason: str, error: BaseException | None) -> None:
    """An end could not be reported: a worker tries again later. Logged once; the audit names it until then."""
    try:
        failures = store.defer(entry, type(error).__name__, pause=FIRST_PAUSE, longest=LONGEST_PAUSE)
    except StoreError as away:  # it is claimed again when the claim has run out
        logger.error("limits: %s is not reported: %r, and then %s", printable(entry.ticket), error, printable(away))
        return
    if failures != 1:
        return
    name, why = printable(entry.ticket), printable(repr(error))
    logger.error(
        "limits: could not report %s as %s: %s; it is tried again with growing pauses, and the audit names it until "
        "that succeeds", name, reason, why, exc_info=error,
    )  # fmt: skip
