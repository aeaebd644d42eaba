"""Telling the world that a task ended in the store: revoked, expired or discarded while it waited.

Does what a worker does for a revoked task (result, chord, signal, event where there is a dispatcher), from the parked
message alone, so it works in any process that has the app, with or without a worker.
"""

from __future__ import annotations

from typing import Any

from celery import signals
from celery.app.task import Context
from celery.utils.log import get_logger
from kombu.serialization import loads, prepare_accept_content

from .metrics.meter import meter
from .store import Store
from .store.outcomes import Ended
from .worker.envelope import Envelope, unpack

__all__ = ["tell", "tell_all"]

logger = get_logger(__name__)


def _context(app: Any, envelope: Envelope) -> Context:
    """The request as a worker would have built it: headers, arguments, and what is embedded in the body (its chord)."""
    accept = prepare_accept_content(app.conf.accept_content)
    payload = loads(envelope.body, envelope.content_type, envelope.content_encoding, accept=accept)
    if isinstance(payload, dict):  # protocol 1 has everything in the body
        return Context(payload)
    args, kwargs, embed = payload
    return Context(envelope.headers, args=args, kwargs=kwargs, **(embed or {}))


def tell(app: Any, ticket: str, message: bytes, reason: str, eventer: Any = None) -> None:
    """Stores the result of one ended ticket as revoked and lets its chord, signals and events know."""
    request = _context(app, unpack(message))
    task = app.tasks.get(request.task)
    backend = task.backend if task else app.backend
    ignored = request.ignore_result if task is None else request.ignore_result or task.ignore_result
    expired = reason == "expired"
    if (to := meter()) is not None:
        to.ended(request.task, reason)
    backend.mark_as_revoked(request.id, reason, request=request, store_result=not ignored)
    sender = task or request.task
    signals.task_revoked.send(sender=sender, request=request, terminated=False, signum=None, expired=expired)
    if eventer is not None and eventer.enabled and getattr(task, "send_events", False):
        eventer.send("task-revoked", uuid=request.id, terminated=False, signum=None, expired=expired)
    logger.info("%s[%s] %s while it waited for its limits (ticket %s)", request.task, request.id, reason, ticket)


def tell_all(app: Any, store: Store, ended: tuple[Ended, ...], reason: str) -> None:
    """Tells and settles what a cancel has ended. What fails stays in the outbox for a worker to try again."""
    for entry in ended:
        try:
            tell(app, entry.ticket, entry.message, reason)
        except Exception as error:
            logger.exception("could not tell that %s was %s: %r; a worker will", entry.ticket, reason, error)
        else:
            store.settle([entry])
