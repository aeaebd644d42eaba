"""Publishing: every task message is stamped with its chain, and a queue that is declared already costs nothing."""

from __future__ import annotations

import time
from typing import Any

from celery_limits.app import Limits
from celery_limits.app.stamp import refuse_misspelt, stamp
from celery_limits.message.call_limits import CALL_HEADER
from celery_limits.message.header import HEADER, WORKER_HEADER
from celery_limits.telemetry.meter import SENT_HEADER
from celery_limits.telemetry.tracing import WAITS_HEADER

from .registry import patch

__all__: list[str] = []

_OWN = frozenset({HEADER, CALL_HEADER, SENT_HEADER, WORKER_HEADER, WAITS_HEADER})
"""What Celery takes for a custom header when it makes a retry of a request."""


@patch(
    "celery.app.amqp:AMQP._create_task_sender",
    takes="self",
    why="Every task message of an app goes through the function that this makes: each is stamped with its chain.",
)
def make_stamping_sender(original: Any, amqp: Any) -> Any:
    send, app = original(amqp), amqp.app

    def send_task_message(producer: Any, name: str, message: Any, **options: Any) -> Any:
        override = options.pop("limits", None)
        if "limit" in options:
            refuse_misspelt(name, options)
        headers = options.get("headers")
        if headers and not _OWN.isdisjoint(headers):
            options["headers"] = {key: value for key, value in headers.items() if key not in _OWN}
        stamp(app, name, message, override, headers)
        if HEADER in message.headers and Limits(app).settings.metrics_port is not None:
            message.headers[SENT_HEADER] = round(time.time(), 3)
        return send(producer, name, message, **options)

    return send_task_message


@patch(
    "celery.canvas:chunks.group",
    takes="self",
    why="Celery drops the options that are set on `chunks`; limits among them must not be dropped.",
)
def keep_limits_of_chunks(original: Any, signature: Any, *args: Any, **kwargs: Any) -> Any:
    group = original(signature, *args, **kwargs)
    limits = signature.options.get("limits")
    return group if limits is None else group.set(limits=limits)


@patch(
    "kombu.messaging:Producer.maybe_declare",
    takes="self entity retry",
    why="kombu copies and binds queue and exchange for each message before it looks whether they are declared, which "
    "takes a sixth of the time of a publish. On our channels it looks first.",
)
def declare_once(original: Any, producer: Any, entity: Any, retry: bool = False, **policy: Any) -> Any:
    return False if _is_declared(entity, producer.channel) else original(producer, entity, retry, **policy)


def _is_declared(entity: Any, channel: Any) -> bool:
    """On a channel of ours that is open. Relies on `declared_entities` of the connection having the hash of what was
    declared, if that can be remembered, as kombu's own look does."""
    if not entity or not getattr(channel, "declares_once", False) or not channel.connection:
        return False
    return bool(entity.can_cache_declaration) and hash(entity) in channel.connection.client.declared_entities
