"""One exchange with the store for what one result of the pool brings about: a body has ended, the next one may begin.

When a process of the prefork pool reports a result, Celery frees the place first, so that the next request comes to the
gate, and then hears that the body has ended. Both wait here until that is over: then the release, with what goes along
with it (see `handoff`), and the admission go out together.

Relies on `result_handler.state_handlers[READY]` being what is called with a result and the process that it is of (the
descriptor by which that is written to), in the event loop's own thread, and on `worker.semaphore` counting free places.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from billiard.pool import READY
from celery.utils.log import get_logger

from celery_limits.store import Store, StoreError
from celery_limits.store.outcomes import Released
from celery_limits.store.together import Together

from .acknowledgements import acknowledgements_of
from .exits import Holding, Releaser, leave_to_parent, left_to_parent
from .handoff import Ride
from .prefork import write_now

if TYPE_CHECKING:
    from .gate import Gate
    from .plan import Plan

__all__ = ["Turns"]

logger = get_logger(__name__)
_MARK = "__celery_limits__"


class Turns:
    """The turns of one gate, which leaves its requests here, and its releases, while one is under way."""

    def __init__(self, gate: Gate, worker: Any, store: Store, releaser: Releaser) -> None:
        self._gate, self._worker, self._store, self._releaser = gate, worker, store, releaser
        self._under_way = self.watching = False
        self._ended: list[tuple[Holding, bool]] = []
        self._asking: list[Any] = []

    def watch(self, pool: Any) -> None:
        """From now on a result of this pool is a turn, and the parent releases."""
        self.watching = True
        leave_to_parent(True)
        handlers = pool._result_handler.state_handlers
        if not hasattr(handlers[READY], _MARK):
            handlers[READY] = self._in_a_turn(handlers[READY], pool)

    def _in_a_turn(self, on_ready: Callable[..., Any], pool: Any) -> Callable[..., Any]:
        def turn(job: int, i: Any, result: Any, process: int) -> None:
            self._under_way = True
            try:
                on_ready(job, i, result, process)
            finally:
                try:
                    while self._ended or self._asking:
                        self._tell()
                    self._gate.expected.give_up_all()
                    if left_to_parent():  # else the loop has ended, and what the pool was handed is not begun any more
                        write_now(pool, self._worker.consumer.hub, process)
                finally:
                    self._under_way = False

        setattr(turn, _MARK, True)
        return turn

    def pause(self) -> None:
        """The event loop has ended, and the parent hears late of what its processes have done."""
        leave_to_parent(False)

    def asks(self, request: Any) -> bool:
        """Whether it is asked for when the turn ends; else it is the gate's to do."""
        if self._under_way:
            self._asking.append(request)
        return self._under_way

    def ends(self, holding: Holding, *, back: bool) -> bool:
        """Whether it is released when the turn ends; else it is the gate's to do."""
        if self._under_way:
            self._ended.append((holding, back))
        return self._under_way

    # -- at the end of a turn ---------------------------------------------------------------------------------------

    def _tell(self) -> None:
        ended, self._ended = self._ended, []
        asking, self._asking = self._asking, []
        asked: list[tuple[Any, Plan]] = []
        ride: Ride | None = None
        together = Together(self._store)
        try:
            asked += self._gate.plan_all(asking)
            ride = self._ride_with(ended, has_place=not asked and not self._asking)
            for i, (holding, back) in enumerate(ended):
                together.release(*holding.admission, back=back, **(ride.along if ride and i == 0 else {}))
            for request, plan in asked:
                self._gate.admit(together, request, plan)
            outcomes = together.exchange()
        except BaseException:  # such as a signal that ends the worker
            self._give_up(ended, asked, ride)
            raise
        if ride is not None:  # first: what was handed over must be in the ledger, or the housekeeping releases it
            ride.arrive(ended[0][0].worker, outcomes[0])
        for (request, plan), outcome in zip(asked, outcomes[len(ended) :], strict=True):
            self._gate.go_on(request, plan, outcome)
        for (holding, back), outcome in zip(ended, outcomes, strict=False):
            self._released(holding, back, outcome)

    def _ride_with(self, ended: list[tuple[Holding, bool]], *, has_place: bool) -> Ride | None:
        consumer = self._worker.consumer
        if not ended or consumer.task_consumer is None:  # which is gone when a worker drains its pool
            return None
        if not any(back for _, back in ended):  # else its message would be back in its queue before the release
            acknowledgements_of(consumer).catch_up()
        return Ride(self._gate.expected, consumer, has_place=has_place and self._worker.semaphore.value > 0)

    def _give_up(self, ended: list[tuple[Holding, bool]], asked: list[tuple[Any, Plan]], ride: Ride | None) -> None:
        """Whether the store was told is not known: the housekeeping makes up for it, or the worker's leaving."""
        for holding, back in ended:
            holding.closed(back=back)
        for request, _ in asked:
            self._gate.ask_no_more(request, back=True)
        if ride is not None:
            ride.arrive(ended[0][0].worker, None)

    def _released(self, holding: Holding, back: bool, outcome: Any) -> None:
        if isinstance(outcome, StoreError):
            logger.error("limits: %s is not released yet: %s", holding.ticket, outcome)
        holding.closed(back=back)
        if isinstance(outcome, Released):
            self._releaser.follow_up(outcome.after)
