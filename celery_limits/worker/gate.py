"""The gate: where the worker hands a request to the pool and a pool place is free, the store is asked.

Relies on `WorkController._process_task(request)` being that place (for prefork the parent's semaphore has been taken)
and, for pools that queue by themselves (threads, gevent, eventlet, solo), on `Request.on_accepted` being called by the
pool in the place that will run the body, before it runs. Tasks without limits pass at the cost of two look-ups.

Nothing here recurses: a request that does not run frees its pool place, which may bring the next request to the gate;
that one waits until the first has left.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

from celery.utils.log import get_logger
from celery.worker.state import task_ready

from celery_limits.errors import LimitError
from celery_limits.publish import MAPS
from celery_limits.store import Store, StoreBroken, StoreError
from celery_limits.store.outcomes import (
    QUIET,
    Admission,
    Admitted,
    Corrupt,
    Discarded,
    Duplicate,
    Expired,
    Full,
    Lost,
    Parked,
    Refresh,
    Revoked,
)
from celery_limits.store.policy import microseconds
from celery_limits.transport.lines import RAW
from celery_limits.wire import HEADER

from .envelope import pack
from .events import announce, listening
from .exits import GONE_CHECK, Holding, Ledger, Releaser
from .handoff import Expected, Taker
from .in_process import NotNow, not_now_in
from .lease import Lease
from .measuring import measure_admission, measure_end
from .plan import Plan, plan_of, queue_of, rank_of
from .putoff import PutOffs
from .turn import Turns

__all__ = ["Gate"]

logger = get_logger(__name__)

SEND_BACK = 3.0
"""Seconds after which a message comes again whose thread could not do with it what is to be done."""

WORKER_HEADER = "limits_worker"
ASKED_FOR = "limits_ticket"


class Gate:
    """Stands in for `worker._process_task`."""

    def __init__(
        self,
        worker: Any,
        store: Store,
        lease: Lease,
        ledger: Ledger,
        releaser: Releaser,
        on_refresh: Callable[[Refresh], Any],
        *,
        trust: bool = True,
    ) -> None:
        self._trust = trust
        self._on_refresh = on_refresh
        self._worker, self._store, self._lease = worker, store, lease
        self._ledger, self._releaser = ledger, releaser
        self._hand_over = worker._process_task
        self._forked = worker.pool_cls.uses_semaphore
        self._not_now_error = not_now_in(worker.pool_cls)
        self._deliveries = itertools.count(1)
        self.put_offs = PutOffs(worker)
        self._unsettled: set[Holding] = set()
        self.expected = Expected(ledger, releaser)
        self._leaving = threading.local()
        self.is_closed = False
        self.turns = Turns(self, worker, store, releaser)

    def __call__(self, request: Any) -> Any:
        task = request.task
        if HEADER not in request.request_dict and getattr(task, "limits", None) is None and task.name not in MAPS:
            return self._hand_over(request)
        if self._forked:
            return self.turns.asks(request) or self._pass_on(request, self._may_run(request))
        self.expected.last_come = request.id
        self._holding_of(request)
        hidden = request.on_accepted

        def on_accepted(pid: int, time_accepted: float) -> Any:
            request.on_accepted = hidden
            try:
                if not self._may_run(request):
                    raise self._not_now_error
                return request.on_accepted(pid, time_accepted)
            except Exception:  # any other is the end that somebody has put to it
                self._send_back(request)
                raise

        request.on_accepted = on_accepted
        try:
            return self._hand_over(request)
        except NotNow:  # the solo pool runs the body right here
            return None

    def _send_back(self, request: Any) -> None:
        """Its thread drops it without a word, for instance since the result that it was revoked can't be stored. So its
        message comes again; not at once, or it would do so until there is somewhere to store that."""
        task_ready(request)
        self._worker.consumer.call_soon(self._worker.timer.call_after, SEND_BACK, request.reject, (True,))

    def _pass_on(self, request: Any, may_run: bool) -> Any:
        return self._hand_over(request) if may_run else self._free_place()

    def view(self) -> dict[str, Any]:
        """What a person asks of a worker: who it is to the store, whether it may admit, how much it has."""
        lease = self._lease
        return {
            "worker": lease.worker,
            "lease_held": lease.held,
            "running": len(self._ledger),
            "put_off": len(self.put_offs),
        }

    # -- asking ----------------------------------------------------------------------------------------------

    def _may_run(self, request: Any) -> bool:
        """True when every slot is held. Else the request has been dealt with: parked, refused, or put off."""
        plan = self._plan(request)
        if isinstance(plan, bool):
            return plan
        try:
            outcome: Any = self.admit(self._store, request, plan)
        except StoreError as error:
            outcome = error
        except BaseException:  # such as a green pool's time limit
            self.ask_no_more(request)
            raise
        return self._answered(request, plan, outcome)

    def _plan(self, request: Any) -> Plan | bool:
        """What to ask the store; or, where it is not asked, whether the request may run."""
        if request.revoked():
            self.ask_no_more(request)
            return False
        try:
            plan = plan_of(request, trust=self._trust)
        except LimitError as error:
            return self._fail(request, error)
        if plan is None:
            self._strip(request)
            return True
        if (handed := self.expected.pop(plan.ticket)) is not None:
            return self._admitted(request, plan, *handed)
        setattr(request, ASKED_FOR, plan.ticket)
        first = self._ledger.ask(plan.ticket, self._number_of(request))
        if self._lease.held:  # a worker that goes looks into the ledger after it has given up its lease
            return plan
        if first:
            self.ask_no_more(request)
        return self._put_off(request)

    def plan_all(self, requests: list[Any]) -> list[tuple[Any, Plan]]:
        """Those of them that the store is to be asked about; the others have been dealt with."""
        asked = []
        for request in requests:
            plan = self._plan(request)
            if isinstance(plan, bool):
                self._pass_on(request, plan)
            else:
                asked.append((request, plan))
        return asked

    def go_on(self, request: Any, plan: Plan, outcome: Any) -> None:
        """The store has answered."""
        self._pass_on(request, self._answered(request, plan, outcome))

    def _strip(self, request: Any) -> None:
        """What no task here declares does not limit it, and must not pass for an admission when its body ends."""
        request.request_dict.pop(WORKER_HEADER, None)
        if request.request_dict.pop(HEADER, None) is not None:
            logger.warning(
                "limits: %s[%s] carries limits that its task does not declare here, and limits_trust_headers is False: "
                "it runs without", request.name, request.id,
            )  # fmt: skip

    def admit(self, store: Store, request: Any, plan: Plan) -> Admission:
        """Asks. Until it is answered it stays in the ledger, and if that fails: it may hold its slots already."""
        ticket, worker = plan.ticket, self._lease.worker
        self.put_offs.asked(request)
        message, cut, queue, field = self._where_it_is(request, plan)
        request.limits_asked_as = worker
        return store.admit(
            ticket,
            plan.links,
            worker,
            delivery=f"{worker}/{self._number_of(request)}",
            message=message,
            cut=cut,
            queue=queue,
            field=field,
            arrival=0 if plan.header.at or not self._trust else plan.header.fence,
            new=self._trust and not plan.header.at and not plan.header.fence,
            rank=rank_of(request, self._worker.app),
            expires=microseconds(request.expires.timestamp()) if request.expires else None,
            late=bool(request.task.acks_late),
        )

    def _answered(self, request: Any, plan: Plan, outcome: Any) -> bool:
        if isinstance(outcome, StoreBroken):
            self.ask_no_more(request)
            return self._fail(request, outcome)
        if isinstance(outcome, StoreError):
            self._lease.doubt(outcome)
            return self._put_off(request)
        after = getattr(outcome, "after", QUIET)
        for asked in after.refreshes:
            self._on_refresh(asked)
        if isinstance(outcome, Admitted):
            return self._admitted(request, plan, request.limits_asked_as, outcome)
        if self._is_ours(request) and isinstance(outcome, (Parked, Duplicate)):
            request.message.channel.acks.was_done(request.message.delivery_tag)
        self._releaser.follow_up(after)
        self.ask_no_more(request, back=True)
        return self._not_now(request, plan, outcome)

    def _admitted(self, request: Any, plan: Plan, worker: str, outcome: Admitted) -> bool:
        field = request.message.delivery_tag
        if str(field)[:1] == "g" and self._is_ours(request):
            request.message.channel.acks.was_admitted(field)
        self._hold(request, plan, worker, outcome.fence)
        measure_admission(request, plan.links, outcome)
        return True

    def take_over_on(self, consumer: Any) -> None:
        """The worker consumes from the Redis of its limits: what a release lets go may come with the answer."""
        if self._forked:
            self.turns.watch(consumer.pool._pool)
            consumer.task_consumer.channel.has_place = lambda: self._worker.semaphore.value > 0
        elif Taker.fits(consumer):
            self._releaser.taker = Taker(self.expected, consumer)

    def is_on(self, channel: Any) -> bool:
        """Whether this is a channel of our own transport, and what it fetches is under this worker's lease."""
        return getattr(channel, "member", None) is self._lease

    def _is_ours(self, request: Any) -> bool:
        """Whether it came that way and has a number, which a broadcast has not."""
        return self.is_on(request.message.channel) and "." in request.message.delivery_tag

    def _where_it_is(self, request: Any, plan: Plan) -> tuple[bytes, int | None, str, str]:
        """Message and cut to park it with; or its queue and the number under which our transport keeps it there."""
        queue = queue_of(request)
        if self._is_ours(request):
            return b"", RAW if plan.as_sent else None, queue, request.message.delivery_tag
        return *pack(request.message, queue, plan.header), "", ""

    def _number_of(self, request: Any) -> int:
        """One per delivery, however often the store is asked about it, so that a lost answer is given again."""
        number: int | None = getattr(request, "limits_number", None)
        if number is None:
            number = request.limits_number = next(self._deliveries)
        return number

    def _hold(self, request: Any, plan: Plan, worker: str, fence: int) -> None:
        """The request carries what the process that runs the body needs to release."""
        carried = request.request_dict.get(HEADER) or plan.header.dump()
        request.request_dict[HEADER] = {**carried, "ticket": plan.ticket, "fence": fence}
        request.request_dict[WORKER_HEADER] = worker
        self._holding_of(request).hold(plan.ticket, worker, fence, self._number_of(request))
        if plan.header.at and listening(request):  # it comes from the store, which has walked it
            announce(request, "resumed", ticket=plan.ticket, keys=[link.key for link in plan.links])

    def _holding_of(self, request: Any) -> Holding:
        """Made once per request, and before the pool has it: see `Holding`."""
        holding: Holding | None = getattr(request, "holding", None)
        if holding is None:
            holding = request.holding = Holding(
                request,
                ledger=self._ledger,
                give_back=self._give_back,
                later=self._settle_later,
                forked=self._forked,
                by_parent=self.turns.watching,
            )
        return holding

    def _give_back(self, holding: Holding, back: bool) -> None:
        if not self.turns.ends(holding, back=back):
            self._releaser.release(*holding.admission, back=back)
            holding.closed(back=back)

    def _settle_later(self, holding: Holding) -> None:
        """The timer may forget: Celery before 5.7 clears it when the broker's connection is lost."""
        self._unsettled.add(holding)
        self._worker.timer.call_after(GONE_CHECK, self._settle, (holding,))

    def _settle(self, holding: Holding) -> None:
        self._unsettled.discard(holding)
        holding.settle()

    def reconnected(self) -> None:
        """The worker has a new connection to its broker."""
        for request in self.put_offs.drop():
            self.ask_no_more(request, back=True)
        self.settle_all()

    def close(self) -> None:
        """The pool has stopped. Whatever the event loop still has to do when it closes must not hand anything to it."""
        self.is_closed = True
        self.put_offs.close()
        self.settle_all()

    def settle_all(self) -> None:
        """Those that wait for a process to be gone."""
        for holding in tuple(self._unsettled):
            self._settle(holding)

    # -- not now ---------------------------------------------------------------------------------------------

    def _not_now(self, request: Any, plan: Plan, outcome: Any) -> bool:
        if isinstance(outcome, (Parked, Duplicate)):
            logger.debug("limits: %s[%s] %r", request.name, request.id, outcome)
            if isinstance(outcome, Parked) and listening(request):
                key = plan.links[outcome.link].key
                announce(request, "parked", ticket=plan.ticket, key=key, link=outcome.link)
            if sift := getattr(request.message.channel, "sift", None):
                sift()
            task_ready(request)
            request.acknowledge()
        elif isinstance(outcome, (Revoked, Expired, Discarded)):
            reason = type(outcome).__name__.lower()
            logger.info("limits: %s[%s] is %s", request.name, request.id, reason)
            measure_end(request.name, reason)
            if isinstance(outcome, Discarded) and listening(request):
                announce(request, "discarded", ticket=plan.ticket, keys=[link.key for link in plan.links])
            request._announce_revoked(reason, False, None, isinstance(outcome, Expired))
        elif isinstance(outcome, Corrupt):
            return self._fail(request, StoreBroken(f"{request.name}[{request.id}]: {outcome.why}; run the audit"))
        else:
            assert isinstance(outcome, (Lost, Full)), outcome
            return self._put_off(request)
        return False

    def _fail(self, request: Any, error: LimitError) -> bool:
        """A limit that can't be understood never means "no limit": the task fails, and the consumer goes on."""
        logger.error("limits: %s[%s] can't run: %s", request.name, request.id, error)
        task_ready(request)
        request.task.backend.mark_as_failure(
            request.id, error, request=request._context, store_result=request.store_errors
        )
        request.reject(requeue=False)
        return False

    def _put_off(self, request: Any) -> bool:
        """Keeps the delivery until the store answers, without taking up the prefetch place of another task."""
        self.put_offs.add(request)
        return False

    def ask_no_more(self, request: Any, *, back: bool = False) -> None:
        """The store may have admitted it, though its answer was lost: the housekeeping makes up for that."""
        self.put_offs.asked(request)
        if ticket := getattr(request, ASKED_FOR, ""):
            self._ledger.ask_no_more(ticket, self._number_of(request), back=back)

    def _free_place(self) -> None:
        """Gives the pool place back. That may call the gate for the next request: only the outermost call loops."""
        release = getattr(self._worker, "_quick_release", None)
        if release is None:  # a broker without an event loop: there the pool itself makes the worker wait for a place
            return
        local = self._leaving
        local.places = getattr(local, "places", 0) + 1
        if getattr(local, "busy", False):
            return
        local.busy = True
        try:
            while local.places:
                local.places -= 1
                release()
        finally:
            local.busy = False
