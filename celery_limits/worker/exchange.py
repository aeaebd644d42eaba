"""One exchange with the store for what one result of the pool brings about: a body has ended, the next one may begin.

When a process of the prefork pool reports a result, Celery frees the place first, so that the next request comes to the
gate, and then hears that the body has ended. Both wait here until that is over: then the releases, with what goes along
with them (see `handoff`), and the admissions go out together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from celery_limits.store.batch import Batch

from .handoff import DirectHandoff, Offer
from .passage import Event, Passage
from .port import WorkerLike

__all__ = ["Exchange", "ExchangeHost"]


class ExchangeHost(Protocol):
    """The gate."""

    def new_batch(self) -> Batch: ...

    def asks(self, passage: Passage) -> bool:
        """Whether the store is to be asked; else the passage has been dealt with."""

    def ask_within(self, batch: Batch, passage: Passage) -> bool:
        """Whether it is asked about together with others; else it has been dealt with, and they go on."""

    def answered(self, passage: Passage, outcome: Any) -> None: ...

    def released(self, passage: Passage, outcome: Any, *, back: bool) -> None: ...

    def forget(self, passage: Passage, event: Event) -> None: ...


class Exchange:
    """Collects what one result brings about, while it is open."""

    def __init__(self, host: ExchangeHost, worker: WorkerLike, handoff: DirectHandoff) -> None:
        self._host, self._worker, self._handoff = host, worker, handoff
        self.is_open = False
        self._ended: list[tuple[Passage, bool]] = []
        self._entering: list[Passage] = []

    def enter(self, passage: Passage) -> None:
        """It has come to the gate, and a place is free."""
        self._entering.append(passage)

    def release(self, passage: Passage, *, back: bool) -> None:
        self._ended.append((passage, back))

    def run(self, report: Callable[[], Any], then: Callable[[], Any]) -> None:
        """What `report` has to tell to the store is told together at its end; and `then` is called."""
        self.is_open = True
        try:
            report()
        finally:
            try:
                while self._ended or self._entering:
                    self._tell()
                self._handoff.give_up_all()
                then()
            finally:
                self.is_open = False

    def _tell(self) -> None:
        ended, self._ended = self._ended, []
        entering, self._entering = self._entering, []
        asked: list[Passage] = []
        offer: Offer | None = None
        batch = self._host.new_batch()
        try:
            asked.extend(passage for passage in entering if self._host.asks(passage))
            offer = self._offer_with(ended, has_place=not asked and not self._entering)
            for i, (passage, back) in enumerate(ended):
                batch.release(*passage.admission, back=back, **(offer.along if offer and i == 0 else {}))
            asked[:] = [passage for passage in asked if self._host.ask_within(batch, passage)]
            outcomes = batch.exchange()
        except BaseException:  # such as a signal that ends the worker
            self._abort(ended, asked, offer)
            raise
        if offer is not None:  # first: what was handed off must be in the ledger, or the housekeeping releases it
            self._handoff.answered(offer, ended[0][0].worker, outcomes[0])
        for passage, outcome in zip(asked, outcomes[len(ended) :], strict=True):
            self._host.answered(passage, outcome)
        for (passage, back), outcome in zip(ended, outcomes, strict=False):
            self._host.released(passage, outcome, back=back)

    def _offer_with(self, ended: list[tuple[Passage, bool]], *, has_place: bool) -> Offer | None:
        if not ended or self._worker.channel is None:
            return None
        if not any(back for _, back in ended):  # else its message would be back in its queue before the release
            self._worker.acknowledge_pending()
        return self._handoff.offer(has_place=has_place)

    def _abort(self, ended: list[tuple[Passage, bool]], asked: list[Passage], offer: Offer | None) -> None:
        """Whether the store was told is not known: the housekeeping makes up for it, or the worker's leaving."""
        for passage, back in ended:
            self._host.released(passage, None, back=back)
        for passage in asked:
            self._host.forget(passage, Event.EXCHANGE_ABORTED)
        if offer is not None:
            self._handoff.answered(offer, ended[0][0].worker, None)
