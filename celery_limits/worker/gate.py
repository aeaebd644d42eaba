"""The gate: where the worker hands a request to the pool and a pool place is free, the store is asked.

Relies on `WorkController._process_task(request)` being that place (for prefork the parent's semaphore has been taken)
and, for pools that queue by themselves (threads, gevent, eventlet, solo), on `Request.on_accepted` being called by the
pool in the place that will run the body, before it runs. Tasks without limits pass at the cost of two look-ups.

The gate feeds events to the passage of a request (see `passage` and `admission`), and carries out the intents that
these return. Nothing here recurses: a request that does not run frees its pool place, which may bring the next request
to the gate; that one waits until the first has left.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from celery.utils.log import get_logger

from celery_limits.app.stamp import MAPS
from celery_limits.dispatch.release import Releaser
from celery_limits.errors import LimitError
from celery_limits.lease.lease import Lease
from celery_limits.lease.ledger import Ledger
from celery_limits.message.header import HEADER, WORKER_HEADER
from celery_limits.patches.request import NotNow
from celery_limits.printable import printable
from celery_limits.store import Store, StoreError
from celery_limits.store.batch import Batch
from celery_limits.store.outcomes import Admission, Discarded, Expired, Parked, Refresh, Released, Superseded
from celery_limits.telemetry.meter import meter
from celery_limits.transport.refused import MISREAD

from . import admission as on
from . import passage as hooked
from .admission import GateIntent
from .arrival import number
from .deferred import Deferred
from .delivery import Deliveries
from .events import announce, listening, tell_superseded
from .exchange import Exchange
from .failing import fail, refuse, unreadable
from .flow_log import log_ended, log_parked, log_resumed
from .handoff import DirectHandoff
from .measuring import held_before, measure_admission, measure_end, measure_hold
from .passage import Event, HookIntent, Passage, Pool, Result, State, returns_to_broker
from .places import Places
from .plan import Plan, plan_of
from .port import WorkerLike
from .request_hooks import attach, passage_of
from .unsettled import Unsettled
from .untrusted import check, expiry_of, forges_admission, strip

__all__ = ["Gate"]

logger = get_logger(__name__)

SEND_BACK = 3.0
"""Delay before requeueing a message whose thread failed to store its final state."""


class Gate:
    """Stands in for `worker._process_task`."""

    def __init__(
        self,
        worker: WorkerLike,
        store: Store,
        lease: Lease,
        ledger: Ledger,
        releaser: Releaser,
        on_refresh: Callable[[Refresh], Any],
        deliveries: Deliveries,
        *,
        trust: bool = True,
        plan: Callable[..., Plan | None] = plan_of,
        batch: Callable[[Store], Batch] = Batch,
    ) -> None:
        self._trust, self._plan, self._batch = trust, plan, batch
        self._worker, self._store, self._lease = worker, store, lease
        self._ledger, self.releaser, self.deliveries = ledger, releaser, deliveries
        self._numbers = itertools.count(1)
        self.not_now = worker.not_now
        self.parent_releases = False
        self.deferred = Deferred(worker)
        self.handoff = DirectHandoff(worker, ledger, releaser.release, wanted=trust)
        self.exchange = Exchange(self, worker, self.handoff)
        self._unsettled, self._places = Unsettled(worker), Places(worker)
        self.is_closed = False
        self._acts: dict[type, Callable[[Passage, Any], Any]] = {
            on.Call: self._call,
            on.Run: self._run,
            on.FreePlace: lambda *_: self._places.free(),
            on.Defer: lambda passage, _: self.deferred.add(passage),
            on.Doubt: lambda _, intent: lease.doubt(intent.error),
            on.Hold: self._hold,
            on.Strip: lambda passage, _: strip(passage.request),
            on.Fail: self._fail,
            on.Forget: lambda passage, intent: self.forget(passage, intent.event),
            on.Withdraw: lambda passage, _: ledger.withdraw(passage.ticket, passage.number),
            on.RefreshLimit: lambda _, intent: on_refresh(intent.asked),
            on.MarkParked: lambda passage, _: passage.delivery.was_parked(),
            on.FollowUp: lambda _, intent: releaser.follow_up(intent.after),
            on.Drop: self._drop,
            on.EndAs: self._end_as,
            hooked.Release: self._release,
            hooked.Close: lambda passage, _: self._closed(passage, back=False),
            hooked.Acknowledge: lambda passage, _: passage.request.limits_acknowledge(),
            hooked.Reject: lambda passage, intent: passage.request.limits_reject(intent.requeue),
            hooked.After: lambda passage, intent: self._unsettled.add(passage, intent.seconds),
        }

    def __call__(self, request: Any) -> Any:
        task = request.task
        if HEADER not in request.request_dict and getattr(task, "limits", None) is None and task.name not in MAPS:
            return self._pass_unlimited(request)
        passage = self._passage_of(request)
        if not self._worker.forked:
            return self._hand_over(passage)
        if self.exchange.is_open:
            return self.exchange.enter(passage)
        return self.carry_out(passage, self._enter(passage))

    def _hand_over(self, passage: Passage) -> Any:
        """To a pool that queues by itself: it comes back to `may_begin` when its place is free."""
        request: Any = passage.request
        self.handoff.arrive(request.id)
        if passage.ticket and request.revoked():  # deferred meanwhile: Celery would drop it, and its slots stay held
            return self.carry_out(passage, self._ended_by_celery(passage))
        number(self._store, passage, partial(self._plan, trust=self._trust))
        try:
            check(request)  # a greenlet that fails at a time limit never comes to `on_accepted`
            return self._worker.hand_over(request)
        except NotNow:  # the solo pool runs the body right here
            return None
        except MISREAD as error:  # of Celery, at what the message says
            if request.time_start is not None:  # the solo pool has run the body, and then failed at the rest
                self.carry_out(passage, passage.bring(Result.REJECTED))
            return self._misread(passage, error)

    def _pass_unlimited(self, request: Any) -> Any:
        """What Celery can't start is set aside by our transport; on any other it is Celery's own affair."""
        ours = getattr(request.message.channel, "sets_aside", False)
        try:
            if ours or forges_admission(request):
                check(request)
            return self._worker.hand_over(request)
        except MISREAD as error:
            if request.time_start is not None or not (ours or isinstance(error, LimitError)):
                raise
            if ours:
                refuse(request, error)
            else:
                fail(request, unreadable(error))
            return self._places.free()

    def _passage_of(self, request: Any) -> Passage:
        """Made once per request, and before the pool has it: see `request_hooks`."""
        passage = passage_of(request)
        if passage is None:
            pool = Pool(self._worker.forked, self.parent_releases, self._worker.is_gone)
            passage = Passage(request, next(self._numbers), pool, self)
            attach(request, passage)
        return passage

    def carry_out(self, passage: Passage, intents: Iterable[GateIntent | HookIntent]) -> None:
        for intent in intents:
            self._acts[type(intent)](passage, intent)

    def view(self) -> dict[str, Any]:
        """What a person asks of a worker: who it is to the store, whether it may admit, how much it has."""
        lease = self._lease
        return {
            "worker": lease.worker,
            "lease_held": lease.held,
            "running": len(self._ledger),
            "put_off": len(self.deferred),
        }

    # -- asking ----------------------------------------------------------------------------------------------

    def may_begin(self, passage: Passage) -> bool:
        """True when every slot is held. Else the request has been dealt with: parked, refused, or deferred."""
        self.carry_out(passage, self._enter(passage))
        return passage.holds or passage.state is State.UNLIMITED

    def send_back(self, passage: Passage) -> None:
        """Its thread drops it without a word, for instance since the result that it was revoked can't be stored. So its
        message comes again; not at once, or it would do so until there is somewhere to store that."""
        request: Any = passage.request
        self._worker.is_ready(request)
        self._worker.call_soon(self._worker.call_after, SEND_BACK, request.reject, True)

    def _enter(self, passage: Passage) -> tuple[GateIntent, ...]:
        """What to do with a request that has come to the gate: in most cases, to ask the store."""
        request: Any = passage.request
        try:
            if request.revoked():
                return self._ended_by_celery(passage)
            plan = self._plan(request, trust=self._trust)
        except (LimitError, *MISREAD) as error:
            return on.unreadable(passage, unreadable(error))
        if plan is None:
            return on.unlimited(passage)
        passage.plan, passage.delivery = plan, self.deliveries.delivery_of(request)
        if (handed := self.handoff.take(plan.ticket)) is not None:
            return on.admitted(passage, *handed, time.monotonic())
        passage.ask(plan.ticket)
        first = self._ledger.ask(plan.ticket, passage.number)
        if self._lease.held:  # a worker that goes looks into the ledger after it has given up its lease
            return (on.Call(),)
        return on.store_away(passage, was_asked=not first)

    def _ended_by_celery(self, passage: Passage) -> tuple[GateIntent, ...]:
        self.handoff.end(passage.request.id)
        return on.ended_by_celery(passage)

    def _call(self, passage: Passage, intent: on.Call) -> None:
        """Asks. Until it is answered it stays in the ledger, and if that fails: it may hold its slots already."""
        try:
            outcome: Any = self.ask(self._store, passage, whole=intent.whole)
        except StoreError as error:
            outcome = error
        except MISREAD as error:
            return self._misread(passage, error)
        except BaseException:  # such as a green pool's time limit
            self.forget(passage, Event.ASK_ABORTED)
            raise
        return self.answered(passage, outcome)

    def ask(self, store: Store, passage: Passage, *, whole: bool = False) -> Admission:
        request: Any = passage.request
        plan, delivery, worker = passage.plan, passage.delivery, self._lease.worker
        self.deferred.remove(passage)
        passage.asked_as = worker
        return store.admit(
            plan.ticket,
            plan.links,
            worker,
            delivery=f"{worker}/{passage.number}",
            arrival=plan.header.arrival or passage.arrival,
            new=self._trust and not plan.header.at and not plan.header.fence,
            resolved=not self._trust,
            begun=plan.begun,
            source=delivery.queue,
            rank=delivery.rank,
            expires=expiry_of(request),
            late=bool(request.task.acks_late),
            **delivery.park_arguments(plan, whole=whole),
        )

    def answered(self, passage: Passage, outcome: Any) -> None:
        try:
            self.carry_out(passage, on.answered(passage, outcome, time.monotonic()))
        except MISREAD as error:
            self._misread(passage, error)

    def _misread(self, passage: Passage, error: Exception) -> None:
        """Something failed at what the message says: that fails the one task, and the worker goes on."""
        self.carry_out(passage, on.unreadable(passage, unreadable(error)))

    def forget(self, passage: Passage, event: Event) -> None:
        """The store may have admitted it, though its answer was lost: the housekeeping makes up for that."""
        self.deferred.remove(passage)
        if passage.ticket:
            self._ledger.ask_no_more(passage.ticket, passage.number, back=returns_to_broker(event))

    # -- in an exchange: see `exchange` ------------------------------------------------------------------------

    def new_batch(self) -> Batch:
        return self._batch(self._store)

    def asks(self, passage: Passage) -> bool:
        intents = self._enter(passage)
        if isinstance(intents[0], on.Call):
            return True
        self.carry_out(passage, intents)
        return False

    def ask_within(self, batch: Batch, passage: Passage) -> bool:
        try:
            self.ask(batch, passage)
        except MISREAD as error:
            self._misread(passage, error)
            return False
        return True

    def released(self, passage: Passage, outcome: Any, *, back: bool) -> None:
        if isinstance(outcome, StoreError):
            logger.error("limits: %s is not released yet: %s", printable(passage.ticket), printable(outcome))
        self._closed(passage, back=back)
        if isinstance(outcome, Released):
            self.releaser.follow_up(outcome.after)

    # -- admitted, and released ----------------------------------------------------------------------------------

    def _hold(self, passage: Passage, intent: on.Hold) -> None:
        """The request carries what the process that runs the body needs to release."""
        request: Any = passage.request
        plan = passage.plan
        passage.delivery.was_admitted()
        carried = request.request_dict.get(HEADER) or plan.header.dump()
        request.request_dict[HEADER] = {**carried, "ticket": plan.ticket, "fence": passage.fence}
        request.request_dict[WORKER_HEADER] = passage.worker
        self._ledger.enter(plan.ticket, passage.fence, passage.number)
        if plan.header.at and listening(request):  # it comes from the store, which has walked it
            announce(request, "resumed", ticket=plan.ticket, keys=[link.key for link in plan.links])
        log_resumed(request, plan.links, intent.outcome)
        measure_admission(request, plan.links, intent.outcome)
        if meter() is not None:
            passage.held_before = held_before(plan.links, intent.outcome)

    def _release(self, passage: Passage, intent: hooked.Release) -> None:
        if self.exchange.is_open:
            return self.exchange.release(passage, back=intent.back)
        self.releaser.release(*passage.admission, back=intent.back)
        return self._closed(passage, back=intent.back)

    def _closed(self, passage: Passage, *, back: bool) -> None:
        """It was released, or that could not be told; `back`: its message goes back."""
        request: Any = passage.request
        self._ledger.close(passage.ticket, passage.fence, back=back)
        links = passage.plan.links
        measure_hold(request.name, links, passage.since, passage.held_before)
        if listening(request):
            announce(request, "released", ticket=passage.ticket, keys=[link.key for link in links])

    def reconnected(self) -> None:
        """The worker has a new connection to its broker."""
        for passage in self.deferred.drop():
            self.forget(passage, Event.CONNECTION_LOST)
        self._unsettled.settle_all()

    def close(self) -> None:
        """The pool has stopped. Whatever the event loop still has to do when it closes must not hand anything to it."""
        self.is_closed = True
        self.deferred.close()
        self._unsettled.settle_all()

    # -- not now ---------------------------------------------------------------------------------------------

    def _drop(self, passage: Passage, intent: on.Drop) -> None:
        request: Any = passage.request
        outcome, plan = intent.outcome, passage.plan
        if isinstance(outcome, Parked):
            log_parked(request, plan.links, outcome)
            if listening(request):
                key = plan.links[outcome.link].key
                place = {"place": outcome.place, "waiting": outcome.waiting}
                announce(request, "parked", ticket=plan.ticket, key=key, link=outcome.link, **place)
        self._worker.is_ready(request)
        request.acknowledge()

    def _end_as(self, passage: Passage, intent: on.EndAs) -> None:
        request: Any = passage.request
        outcome, plan = intent.outcome, passage.plan
        reason = type(outcome).__name__.lower()
        if isinstance(outcome, Superseded):
            reason = tell_superseded(request, plan.ticket, outcome.by)
        else:
            measure_end(request.name, reason)
        log_ended(request, plan.links, reason, getattr(outcome, "link", None))
        if isinstance(outcome, Discarded) and listening(request):
            announce(request, "discarded", ticket=plan.ticket, keys=[link.key for link in plan.links])
        request._announce_revoked(reason, False, None, isinstance(outcome, Expired))

    def superseded(self, passage: Passage) -> str:
        """Its body was ended for a newcomer."""
        return tell_superseded(passage.request, passage.ticket, passage.superseded_by)

    def _fail(self, passage: Passage, intent: on.Fail) -> None:
        """A limit that can't be understood never means "no limit": the task fails, and the consumer goes on."""
        request: Any = passage.request
        self.handoff.end(request.id)
        fail(request, intent.error)

    def _run(self, passage: Passage, _: on.Run) -> None:
        """Pools that queue by themselves have it already."""
        if not self._worker.forked:
            return
        try:
            self._worker.hand_over(passage.request)
        except MISREAD as error:
            self._misread(passage, error)
