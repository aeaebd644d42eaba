"""Working off the outbox: messages whose turn has come, back to their queue; ends, to the result backend.

At least once: an entry is settled only when the broker has confirmed it. A second copy of a message finds its ticket
running or finished, and is dropped: the store counts how often a message is sent, so nothing is sent again unless it
was claimed again.
"""

from __future__ import annotations

import os
import threading
import weakref
from contextlib import suppress
from typing import Any

from celery.utils.log import get_logger
from kombu.exceptions import OperationalError
from kombu.messaging import Producer

from celery_limits.message.envelope import Envelope, unpack
from celery_limits.printable import printable
from celery_limits.store import Store
from celery_limits.store.outcomes import Claimed

from .report_end import defer_report, report_end

__all__ = ["Outbox"]

logger = get_logger(__name__)
BATCH = 20

CONFIRM_SECONDS = 5.0
"""How long a broker may take to confirm, before its connection counts as dead."""

CLAIM_SECONDS = 10.0
"""How long a batch may take. What could not be published is tried again after so long; see `limits_grant_timeout`."""

PATIENCE = {"max_retries": 3, "interval_start": 0.1, "interval_step": 0.5}
"""How often a broker that can't be reached is tried."""

_COPIED_TO = "CC"
"""RabbitMQ's header for further routing keys: the other queues had their copies when it was first published."""


class Unconfirmed(Exception):
    """The connection broke, or the broker was silent, after a message was sent: it has that message, or not."""


class _Unreported(Exception):
    """The end of a task could not be reported."""


class Outbox:
    """One per process. `work_off` may be called from any thread."""

    def __init__(self, app: Any, store: Store) -> None:
        self.app, self.store = app, store
        self._start_over()
        own = weakref.WeakMethod(self._start_over)
        os.register_at_fork(after_in_child=lambda: _call(own))

    def _start_over(self) -> None:
        """A forked child must neither wait for a lock that a thread of its parent held, nor use its connection."""
        self._lock = threading.Lock()
        self._producer: Producer | None = None

    def work_off(self) -> int:
        """Finishes all that waits there now; how many that was. Errors of one entry do not stop the others."""
        done = 0
        again: list[Claimed] = []
        while claimed := self.store.claim(BATCH, settle_within=CLAIM_SECONDS, again=again):
            retried = bool(again)
            settled, again = self._finish_all(claimed)
            if settled and (recovered := self.store.settle(settled)):
                logger.warning("outbox: %d ends are reported now that could not be reported before", recovered)
            done += len(settled)
            if len(settled) < len(claimed) and (retried or not again):
                break
        return done

    def _finish_all(self, claimed: tuple[Claimed, ...]) -> tuple[list[Claimed], list[Claimed]]:
        """Those that could be finished, and those that another connection may help, at once. The others are claimed
        again, by anyone, when the claim has run out."""
        settled, again = list[Claimed](), list[Claimed]()
        for entry in claimed:
            try:
                self._finish(entry)
            except OperationalError as error:  # as for this one, so for all: no process should wait for each in turn
                logger.error("outbox: the broker can't be reached: %s; it will be tried again", printable(error))
                return settled, []
            except Unconfirmed as error:
                said = printable(entry.ticket), printable(error)
                logger.warning("outbox: %s may not have reached the broker: %s; it is sent again", *said)
                again.append(entry)
            except _Unreported as error:
                self._defer(entry, error)
            except Exception as error:
                ticket = printable(entry.ticket)
                logger.exception("outbox: could not finish %s: %r; it will be tried again", ticket, error)
            else:
                settled.append(entry)
        return settled, again

    def _finish(self, entry: Claimed) -> None:
        if entry.reason is None:
            self._publish(unpack(entry.message))
            return
        try:
            report_end(self.app, entry.ticket, entry.message, entry.reason)
        except Exception as error:
            raise _Unreported from error

    def _defer(self, entry: Claimed, error: _Unreported) -> None:
        """Tried again less and less often, by whichever process claims it, and logged once: what keeps a result from
        being stored (a backend that is down, a message that is not accepted here) lasts."""
        defer_report(self.store, entry, str(entry.reason), error.__cause__)

    def _publish(self, envelope: Envelope) -> None:
        """To the one queue that it came from, whatever exchange it was published through, and confirmed."""
        properties = dict(envelope.properties)
        headers = {name: value for name, value in envelope.headers.items() if name != _COPIED_TO}
        expiration = properties.pop("expiration", None)
        if expiration is not None:  # milliseconds on the wire, seconds to kombu, which rounds down
            properties["expiration"] = (float(expiration) + 0.5) / 1000
        queues = self.app.amqp.queues
        with self._lock:
            try:
                producer = self._connected()
                self._send(
                    producer,
                    envelope.body,
                    exchange="",
                    routing_key=envelope.queue,
                    mandatory=True,  # a queue that is gone is an error: the message stays in the store
                    content_type=envelope.content_type,
                    content_encoding=envelope.content_encoding,
                    headers=headers,
                    compression=headers.pop("compression", None),
                    declare=[queues[envelope.queue]] if dict.__contains__(queues, envelope.queue) else None,
                    confirm_timeout=CONFIRM_SECONDS,
                    **properties,
                )
            except BaseException:
                self._disconnect()  # a confirmation that is still to come would be taken for that of the next message
                raise

    @staticmethod
    def _send(producer: Producer, *args: Any, **kwargs: Any) -> None:
        """Once. kombu would send it again over a new connection, and nobody would count that there are two."""
        try:
            producer.publish(*args, retry=False, **kwargs)
        except producer.connection.recoverable_connection_errors as error:
            raise Unconfirmed(repr(error)) from error

    def _connected(self) -> Producer:
        """A producer of this process's own; brokers that can are told to confirm what they have stored."""
        if self._producer is None:
            connection = self.app.connection_for_write()
            connection.transport_options = {**connection.transport_options, "confirm_publish": True}
            self._producer = Producer(connection)
        self._producer.connection.ensure_connection(**PATIENCE)
        return self._producer

    def _disconnect(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            with suppress(Exception):
                producer.connection.collect()


def _call(method: weakref.WeakMethod[Any]) -> None:
    if (bound := method()) is not None:
        bound()
