"""The limits of the shop in use, without a worker: messages as they are published, brought to the gate by hand."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from kombu.message import Message
from kombu.serialization import dumps

from celery_limits import Limits
from celery_limits.app.stamp import stamp
from celery_limits.declare.limits import Limit
from celery_limits.message.envelope import pack
from celery_limits.message.header import HEADER, read_header, ticket_in
from celery_limits.store.outcomes import Admission, Admitted

__all__ = ["Counter"]

QUEUE = "celery"


class Counter:
    """One who brings messages to the store, as a worker would, and keeps what runs."""

    def __init__(self, limits: Limits, worker: str = "till@shop/1/a") -> None:
        self.limits, self.worker = limits, worker
        self.running: dict[str, tuple[str, int]] = {}
        self._deliveries = itertools.count(1)
        limits.store.beat(worker)

    def bring(
        self, task: str, *, task_id: str = "", rank: int = 0, limits: Sequence[Limit] | None = None, **kwargs: Any
    ) -> tuple[str, Admission]:
        """Publishes a call, under the limits of its task or these, and lets it ask to run; its task id, and what the
        store said."""
        task_id, app = task_id or uuid4().hex, self.limits.app
        sent = app.amqp.as_task_v2(task_id, task, args=(), kwargs=kwargs)
        stamp(app, task, sent, limits)
        content_type, encoding, body = dumps(sent.body, serializer="json")
        message: Any = Message(
            body=body, content_type=content_type, content_encoding=encoding,
            headers=sent.headers, properties=sent.properties,
        )  # fmt: skip
        header = read_header(sent.headers[HEADER])
        packed, cut = pack(message, QUEUE, header)
        ticket = ticket_in(header.ticket, QUEUE)
        delivery = f"{self.worker}/{next(self._deliveries)}"
        outcome = self.limits.store.admit(
            ticket, header.links, self.worker, delivery=delivery, message=packed, cut=cut, rank=rank
        )
        if isinstance(outcome, Admitted):
            self.running[task_id] = ticket, outcome.fence
        return task_id, outcome

    def finish(self, task_id: str) -> None:
        ticket, fence = self.running.pop(task_id)
        self.limits.store.release(ticket, self.worker, fence)
