"""A limited message whose task this worker does not know, as after a deploy that removed the task while it waited.

Celery rejects it, and it is gone. Its message is set aside in the store first, for a person to look at.

Relies on `Consumer.on_unknown_task(body, message, exc)` being looked up when the consumer starts to consume.
"""

from __future__ import annotations

from typing import Any

from celery.utils.log import get_logger

from celery_limits.errors import CorruptChain, UnreadableMessage
from celery_limits.message.envelope import pack
from celery_limits.message.header import HEADER, read_header, ticket_in
from celery_limits.printable import printable
from celery_limits.store import Store, StoreError
from celery_limits.store.aside import add_aside
from celery_limits.transport.delivery import QUEUE_MARK, Message
from celery_limits.transport.payload import dump

__all__ = ["keep_unknown"]

logger = get_logger(__name__)


def keep_unknown(consumer: Any, store: Store) -> None:
    if "on_unknown_task" in vars(consumer):
        return
    reject = consumer.on_unknown_task

    def on_unknown_task(body: Any, message: Any, exc: Any) -> Any:
        if message.headers.get(HEADER) is not None and not _set_aside(store, message):
            return None  # it stays unacknowledged, and its broker delivers it again when this worker has ended
        return reject(body, message, exc)

    consumer.on_unknown_task = on_unknown_task


def _set_aside(store: Store, message: Any) -> bool:
    """Whether the message may be rejected now."""
    queue = getattr(message, QUEUE_MARK, None) or message.delivery_info.get("routing_key") or ""
    try:
        header = read_header(message.headers[HEADER])
        name = ticket_in(header.ticket, queue)
        if isinstance(message, Message):  # of our own transport, which can put it back as it was
            add_aside(store, name, "unknown task", dump(message._raw), queue)
        else:
            add_aside(store, name, "unknown task", pack(message, queue, header)[0])
    except (CorruptChain, UnreadableMessage):
        return True
    except StoreError as error:
        said = printable(error)
        logger.error("limits: could not set aside the message of an unknown task, so it is kept here: %s", said)
        return False
    task = message.headers.get("task")
    logger.error("limits: no task %r here; its message is set aside as %r; `limits aside` shows it", task, name)
    return True
