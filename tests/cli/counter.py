"""The limits of the shop in use, without a worker: messages as they are published, brought to the gate by hand."""

from __future__ import annotations

import itertools
from typing import Any
from uuid import uuid4

from kombu.message import Message
from kombu.serialization import dumps

from celery_limits import Limits
from celery_limits.publish import stamp
from celery_limits.store.outcomes import Admission, Admitted
from celery_limits.wire import HEADER, read_header
from celery_limits.worker.envelope import pack

__all__ = ["Counter"]


class Counter:
    """One who brings messages to the store, as a worker would, and keeps what runs."""

    def __init__(self, limits: Limits, worker: str = "till@shop/1/a") -> None:
        self.limits, self.worker = limits, worker
        self.running: dict[str, tuple[str, int]] = {}
        self._deliveries = itertools.count(1)
        limits.store.beat(worker)

    def bring(self, task: str, *, task_id: str = "", rank: int = 0, **kwargs: Any) -> tuple[str, Admission]:
        """Publishes a call and lets it ask to run; its task id, and what the store said."""
        task_id, app = task_id or uuid4().hex, self.limits.app
        sent = app.amqp.as_task_v2(task_id, task, args=(), kwargs=kwargs)
        stamp(app, task, sent, None)
        content_type, encoding, body = dumps(sent.body, serializer="json")
        message: Any = Message(
            body=body, content_type=content_type, content_encoding=encoding,
            headers=sent.headers, properties=sent.properties,
        )  # fmt: skip
        header = read_header(sent.headers[HEADER])
        packed, cut = pack(message, "celery", header)
        delivery = f"{self.worker}/{next(self._deliveries)}"
        outcome = self.limits.store.admit(
            header.ticket, header.links, self.worker, delivery=delivery, message=packed, cut=cut, rank=rank
        )
        if isinstance(outcome, Admitted):
            self.running[task_id] = header.ticket, outcome.fence
        return task_id, outcome

    def finish(self, task_id: str) -> None:
        ticket, fence = self.running.pop(task_id)
        self.limits.store.release(ticket, self.worker, fence)
