"""Bootsteps: where the gate, the lease and the queue marks are put into a worker, and in which order they leave it.

Relies on steps being constructed before the pool is created, on the steps of the pool and of the event loop requiring
ours (so ours stops after them), on `kombu.Consumer._basic_consume` being how a consumer subscribes to one queue, and on
every message passing through its channel's `message_to_python`.
"""

from __future__ import annotations

import atexit
from contextlib import suppress
from functools import partial
from typing import Any

from celery import bootsteps
from celery.concurrency.base import BasePool
from celery.exceptions import ImproperlyConfigured
from celery.utils.log import get_logger
from celery.worker import state
from celery.worker.components import Hub, Timer
from celery.worker.consumer.tasks import Tasks
from celery.worker.state import active_requests, reserved_requests

from celery_limits.app.handle import Limits
from celery_limits.dispatch.outbox import Outbox
from celery_limits.dispatch.release import OutboxChore, leave_to_parent, left_to_parent
from celery_limits.dispatch.report_end import send_events_with
from celery_limits.errors import LimitError
from celery_limits.lease.heartbeat import real_threads
from celery_limits.lease.lease import Lease
from celery_limits.lease.ledger import Ledger
from celery_limits.message.header import HEADER
from celery_limits.patches import apply, asynpool, mingle, panel, request
from celery_limits.patches.bootsteps import put_before_pool
from celery_limits.printable import printable
from celery_limits.secret import masked_info
from celery_limits.store import StoreError
from celery_limits.store.outcomes import Refresh
from celery_limits.transport.channel import QUEUE_MARK
from celery_limits.transport.member import adopt, disown

from . import panel as _panel  # noqa: F401  (importing it registers its commands)
from . import prefork
from .acknowledgements import acknowledgements_of
from .chores import DeadlockChore, GateChore
from .delivery import Deliveries, is_own_channel
from .events import sender_of, untied_sender
from .gate import Gate
from .port import CeleryPort
from .refresh import hand_to_pool
from .request_hooks import passage_of
from .serving import Service
from .superseding import PreemptChore
from .threads import leave_to_free_threads
from .unknown import keep_unknown

__all__ = ["LimitsStep", "QueueMarks", "SettleStep"]

logger = get_logger(__name__)

put_before_pool()
apply(mingle)
apply(panel)

TRIES = 6
"""Calls of a silent store that fit into a lease: a renewal that fails leaves time for others, and for the end."""


class LimitsStep(bootsteps.StartStopStep):
    """Limits in this worker: from before the pool starts until after it has drained, and the last acknowledgement."""

    requires = (Timer,)
    name = "limits"

    def __init__(
        self,
        worker: Any,
        limits_store: str | None = None,
        limits_lease: float | None = None,
        limits_namespace: str | None = None,
        limits_metrics_port: int | None = None,
        **kwargs: Any,
    ):
        super().__init__(worker, **kwargs)
        flags = {
            "store_url": limits_store,
            "lease": limits_lease,
            "namespace": limits_namespace,
            "metrics_port": limits_metrics_port,
        }
        for name, given in flags.items():
            if given is not None:
                setattr(worker.app.conf, f"limits_{name}", given)
        self.limits = Limits(worker.app)
        self.limits.reload()
        self.lease: Lease | None = None
        self.ledger = Ledger()
        try:
            self.limits.check()
            self.active = self.limits.in_use
            if self.active:
                self._install(worker)
            else:
                worker._process_task = partial(_keep_limited, worker, worker._process_task)
        except (LimitError, ImproperlyConfigured) as error:
            raise SystemExit(f"limits: {error}") from None

    def _install(self, worker: Any) -> None:
        limits, ledger = self.limits, self.ledger
        store, releaser = limits.store, limits.releaser
        seconds = limits.settings.refresh_timeout

        def refresh(asked: Refresh) -> None:
            worker.consumer.call_soon(refresh_now, asked)

        def refresh_now(asked: Refresh) -> None:
            if not gate.is_closed:  # else it is asked of another when this worker has left
                hand_to_pool(worker.consumer, lease.worker, asked, seconds)

        service = worker.limits_service = Service(worker)
        lease = self.lease = service.lease = Lease(worker.hostname, store, ledger, serving=service)
        if limits.on_broker:
            adopt(store, lease)
        if limits.settings.metrics_port is not None:
            _measure(limits)
        apply(asynpool if worker.pool_cls.uses_semaphore else request)
        deliveries, trust = Deliveries(lease, limits.app), limits.settings.trust_headers
        gate = Gate(CeleryPort(worker), store, lease, ledger, releaser, refresh, deliveries, trust=trust)
        worker._process_task = worker.limits_gate = gate
        lease.register(GateChore(gate, refresh, partial(_end_bodies, worker, limits, set())))
        # Its own outbox: a pool child is forked while the thread of the housekeeping works.
        lease.register(PreemptChore(worker))
        lease.register(DeadlockChore(untied_sender(worker, limits.app)))
        lease.register(OutboxChore(Outbox(limits.app, store)))
        send_events_with(limits.app, sender_of(worker))
        _extend_banner(worker, limits)

    def include_if(self, worker: Any) -> bool:
        return self.active

    def create(self, worker: Any) -> LimitsStep:
        return self

    def start(self, worker: Any) -> None:
        assert self.lease is not None
        seconds = self.limits.settings.lease
        try:
            self.lease.start(real_threads(worker.pool_cls), self.limits.new_store(within=seconds / TRIES))
        except StoreError as error:  # one that waiting does not help against
            logger.critical("limits: %s", printable(error))
            raise SystemExit(1) from None

    def stop(self, worker: Any) -> None:
        if self.lease is not None:
            self.lease.stop()
            disown(self.lease)

    def terminate(self, worker: Any) -> None:
        """Bodies in threads run on until the process ends, whatever it is told: so long it keeps the lease, and they
        their slots, those too that are being asked for. Processes are gone by now."""
        if self.lease is not None:
            self.lease.admit_no_more()
        if worker.pool_cls.uses_semaphore or not len(self.ledger):
            self.stop(worker)
        else:
            atexit.register(self._stop_at_exit, worker)  # which is run when the threads of the pool have ended

    def _stop_at_exit(self, worker: Any) -> None:
        """Python does not wait for a thread if it was interrupted while it waited for it, as by a third SIGQUIT. What
        that one runs ends with the process, and the lease lapses when that is gone."""
        if not len(self.ledger):
            self.stop(worker)


class SettleStep(bootsteps.StartStopStep):
    """Stops after the pool, when no process of it is left, and before the event loop. Acknowledgements that wait for a
    process to be gone (a hard time limit has ended it) wait for a timer that does not ring any more by then. And what
    the loop still does as it closes, acknowledging among it, must not fail for want of a pool."""

    requires = (Hub, LimitsStep)
    name = "limits-settle"

    def include_if(self, worker: Any) -> bool:
        return hasattr(worker, "limits_gate")

    def start(self, worker: Any) -> None:
        """There is nothing to settle yet."""

    def stop(self, worker: Any) -> None:
        worker.limits_gate.close()

    terminate = stop


def _keep_limited(worker: Any, hand_over: Any, request: Any) -> Any:
    """In a worker without a store, a message that carries limits must not run without them: it is held, beside the
    others, until the worker ends and its broker gives it to one that can."""
    if HEADER not in request.request_dict:
        return hand_over(request)
    logger.error(
        "limits: %s[%s] carries limits, but this worker has no store for them, so it is not run here: "
        "set limits_store_url and restart the worker", printable(request.name), printable(request.id),
    )  # fmt: skip
    worker.consumer.qos.increment_eventually()
    release = getattr(worker, "_quick_release", None)
    if worker.pool_cls.uses_semaphore and release is not None:
        worker.consumer.call_soon(release)
    return None


def _end_bodies(worker: Any, limits: Limits, named: set[str]) -> None:
    """The lease is about to lapse, and others will be given what this worker holds. Called until it is renewed."""
    holders = [r for r in _all_of(active_requests) if (passage := passage_of(r)) is not None and passage.was_admitted]
    terminate = limits.settings.on_lost_lease == "terminate" and worker.pool_cls.uses_semaphore
    news = [name for request in holders if (name := f"{request.name}[{request.id}]") not in named]
    named.update(news)
    if news:
        what = "these are ended" if terminate else "these run on, beside those that get their slots"
        logger.critical("limits: the lease lapses, and %s: %s", what, printable(", ".join(news[:10])))
    if terminate:
        prefork.kill_holders(worker.pool._pool)


def _measure(limits: Limits) -> None:
    """A port that is taken is no reason not to work: another worker on this machine may have it."""
    from celery_limits.metrics.prometheus import enable, serve  # noqa: PLC0415  (an extra)

    settings = limits.settings
    enable(limits.app)
    try:
        port = serve(settings.metrics_port or 0, settings.metrics_address)
    except OSError as error:
        logger.error(
            "limits: no metrics from this worker: port %s can't be opened (%s); give each worker of a machine its own "
            "with --limits-metrics-port, or 0 for any", settings.metrics_port, error,
        )  # fmt: skip
    else:
        logger.warning("limits: metrics at http://%s:%d/metrics", settings.metrics_address, port)


def _extend_banner(worker: Any, limits: Limits) -> None:
    original = getattr(worker, "startup_info", None)
    if original is None:
        return
    settings, tasks = limits.settings, limits.app.tasks
    text = (
        f"\n[limits]\n"
        f"  . store:       {limits.url}\n"
        f"  . namespace:   {settings.namespace}\n"
        f"  . lease:       {settings.lease:g} s\n"
        f"  . limited:     {len(limits.declared())} of {len(tasks)} tasks\n"
    )
    worker.startup_info = lambda *args, **kwargs: (original(*args, **kwargs) or "") + text


class QueueMarks(bootsteps.StartStopStep):
    """Marks each message with the queue that it came from: to that queue alone it goes back."""

    requires = (Tasks,)
    name = "limits-queues"

    def start(self, consumer: Any) -> None:
        gate = getattr(consumer.controller, "limits_gate", None)
        if gate is not None:
            gate.reconnected()
            keep_unknown(consumer, Limits(consumer.app).store)
            consumer.controller.limits_service.begin(consumer)
        restore_in_its_own_thread(consumer)
        if not is_own_channel(consumer.task_consumer.channel):
            return mark_queues(consumer.task_consumer)
        # Ours, which marks its messages itself.
        consumer.task_consumer.channel.sets_aside = True
        consumer.task_consumer.channel.still_running = partial(running_deliveries, consumer)
        apply(asynpool if consumer.controller.pool_cls.uses_semaphore else request)
        if gate is not None and gate.deliveries.is_under_lease(consumer.task_consumer.channel):
            hand_off_on(consumer, gate)
        acknowledgements_of(consumer).catch_up()
        return None

    def info(self, consumer: Any) -> dict[str, Any]:
        """For `inspect stats`, after and in place of Celery's own, which takes out one password of several."""
        return {"broker": masked_info(consumer.connection.info())} if consumer.connection else {}

    def stop(self, consumer: Any) -> None:
        """The loop has ended. When all ends with it, the channel is closed next, and gives back what is open."""
        leave_to_parent(False)
        if (service := getattr(consumer.controller, "limits_service", None)) is not None:
            service.end()
        acknowledgements_of(consumer).catch_up()


def hand_off_on(consumer: Any, gate: Gate) -> None:
    """The worker consumes from the Redis of its limits: what a release admits may come with the answer. In a prefork
    pool the parent releases, in the exchange of each result.

    Relies, for a pool of threads, on a loop that wakes when it is called from another thread (`Hub._waker`, kombu 5.7
    and later)."""
    worker = consumer.controller
    if worker.pool_cls.uses_semaphore:
        gate.parent_releases = True
        leave_to_parent(True)
        pool = consumer.pool._pool

        def write(process: int) -> None:
            if left_to_parent():  # else the loop has ended, and what the pool was handed is not begun any more
                prefork.write_now(pool, worker.consumer.hub, process)

        prefork.watch_results(pool, lambda report, process: gate.exchange.run(report, partial(write, process)))
        consumer.task_consumer.channel.has_place = lambda: worker.semaphore.value > 0
    elif hasattr(getattr(consumer.pool, "executor", None), "_work_queue") and hasattr(consumer.hub, "_waker"):
        gate.releaser.handoff = gate.handoff
        leave_to_free_threads(consumer)


def restore_in_its_own_thread(consumer: Any) -> None:
    """After a reconnection Celery raises the prefetch count again with what is acknowledged, in the thread that does
    so, and waits there for the broker's answer. If the event loop reads that, or asks for the same, one of them waits
    for ever: a task that has been acknowledged does not begin, or nothing is acknowledged any more.

    Relies on `Consumer._restore_prefetch_count_after_connection_restart` being what is called then."""
    name = "_restore_prefetch_count_after_connection_restart"
    if name in vars(consumer):
        return
    restore = getattr(consumer, name)

    def restore_now(*args: Any) -> None:
        with suppress(*consumer.connection_errors):  # the event loop finds out by itself
            restore(*args)

    setattr(consumer, name, lambda *args: consumer.call_soon(restore_now, *args))


def running_deliveries(consumer: Any) -> set[str]:
    """What goes on although the connection that brought it is gone. It stays this worker's, and is acknowledged when it
    ends; a worker that stops keeps nothing."""
    if state.should_stop or state.should_terminate:  # but with the exit code 0 it lets what runs come to its end
        return set()
    active = _all_of(active_requests)
    going_on = [request for request in active if not _is_cancelled(consumer, request)]
    handed = [r for r in _all_of(reserved_requests) - active if getattr(r, "_apply_result", None) is not None]
    if consumer.controller.pool_cls.uses_semaphore:
        # A process may have begun with it, though the parent has not read that; any other pool runs all that it has.
        # What the request knows of the pool's job is a weak reference to it.
        handed = [request for request in handed if prefork.has_process(consumer.pool._pool, request._apply_result())]
    tags = {request.message.delivery_tag for request in (*going_on, *handed)}
    return tags | acknowledgements_of(consumer).tags


def _all_of(requests: Any) -> set[Any]:
    """Celery's sets of requests are changed by the threads of the pool; who iterates over one meanwhile is told so."""
    while True:
        try:
            return {*requests}
        except RuntimeError:
            continue


def _is_cancelled(consumer: Any, request: Any) -> bool:
    """Whether Celery ends a body because the connection is lost, which it does after this is asked."""
    if not consumer.app.conf.worker_cancel_long_running_tasks_on_connection_loss:
        return False
    can = getattr(consumer.pool.terminate_job, "__func__", None) is not BasePool.terminate_job
    return can and request.task.acks_late and not request.acknowledged


def mark_queues(task_consumer: Any) -> None:
    """The callback of each queue says which queue it is; the channel, which makes the message, writes it on."""
    channel, receive = task_consumer.channel, task_consumer._receive_callback
    convert = channel.message_to_python
    current = [""]

    def message_to_python(raw: Any) -> Any:
        message = convert(raw)
        setattr(message, QUEUE_MARK, current[0])
        return message

    def receive_from(queue_name: str, raw: Any) -> Any:
        current[0] = queue_name
        return receive(raw)

    def basic_consume(queue: Any, consumer_tag: Any = None, no_ack: Any = None, nowait: bool = True) -> Any:
        tag = task_consumer._active_tags.get(queue.name)
        if tag is None:
            no_ack = queue.no_ack if no_ack is None else no_ack
            tag = task_consumer._add_tag(queue, consumer_tag)
            if hasattr(task_consumer, "_active_queue_no_ack"):  # kombu 5.6 and later
                task_consumer._active_queue_no_ack[queue.name] = no_ack
            queue.consume(tag, partial(receive_from, queue.name), no_ack=no_ack, nowait=nowait)
        return tag

    channel.message_to_python = message_to_python
    task_consumer._basic_consume = basic_consume
