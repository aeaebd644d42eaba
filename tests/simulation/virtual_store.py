"""The store as a virtual worker sees it: each verb is a call in virtual time, which the referee makes and judges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from celery_limits.dispatch.outbox import Outbox, Unconfirmed
from celery_limits.store import StoreUnavailable
from celery_limits.store.outcomes import QUIET, Aftermath, Claimed
from tests.store.actors import SECOND
from tests.store.model import POLICY, Errand, Worker

from .fibers import block
from .schedule import ATTEMPTS, Call, Idle, Sleep, Unreachable

if TYPE_CHECKING:
    from .worker import VirtualWorker

__all__ = ["VirtualBatch", "VirtualOutbox", "VirtualStore"]


class _Verb(NamedTuple):
    what: str
    run: Callable[[], Any]


class VirtualStore:
    policy = POLICY

    def __init__(self, worker: VirtualWorker) -> None:
        self._worker, self._referee, self._story = worker, worker.story.referee, worker.story
        self.errands: dict[tuple[str, int], Errand] = {}

    def _life(self, name: str) -> Worker:
        return self._referee.world.workers[name]

    def _do(self, verb: _Verb) -> Any:
        return self._call(verb.what, verb.run)

    @staticmethod
    def _call(what: str, run: Callable[[], Any], attempts: int = ATTEMPTS) -> Any:
        try:
            return block(Call(what, run, attempts))
        except Unreachable:
            raise StoreUnavailable(f"{what} was not answered") from None

    # -- a message's way through its limits -------------------------------------------------------------------

    def admit(self, ticket: str, *args: Any, **kwargs: Any) -> Any:
        return self._do(self.asking(ticket, *args, **kwargs))

    def asking(
        self,
        ticket: str,
        links: Any,
        worker: str,
        *,
        delivery: str,
        rank: int,
        expires: int | None,
        late: bool,
        arrival: int,
        new: bool,
        resolved: bool,
        begun: str,
        message: bytes = b"",
        field: str = "",
        queue: str = "",
        source: str = "",
        cut: int | None = None,
    ) -> _Verb:
        assert not resolved
        assert not begun
        assert source == queue or not queue, f"asked for {source}, to be put back into {queue}"
        known = self._referee.world.messages[ticket]
        said = (links, rank, expires, late, queue)
        assert said == (known.links, known.rank, known.expires, known.late, known.queue), f"asked with {said}"
        run = partial(
            self._referee.admit,
            known,
            self._life(worker),
            delivery,
            full=bool(message) or bool(field),
            field=field,
            arrival=arrival,
            new=new,
        )
        return _Verb(f"admit({ticket}, {delivery}{', ' + field if field else ''})", run)

    def release(self, ticket: str, *args: Any, **kwargs: Any) -> Any:
        return self._do(self.releasing(ticket, *args, **kwargs))

    def releasing(
        self,
        ticket: str,
        worker: str,
        fence: int,
        *,
        back: bool = False,
        acked: Sequence[str] = (),
        taking: Sequence[Any] = (),
    ) -> _Verb:
        message, mark = self._referee.world.messages[ticket], taking[0] if taking else ""
        what = f"release({ticket}, {worker}, {fence}{', back' if back else ''} {','.join(acked)} {mark})"
        give_up = self._referee.give_up
        run = partial(give_up, message, self._life(worker), fence, back=back, acked=tuple(acked), mark=mark)
        return _Verb(what, run)

    # -- the outbox -------------------------------------------------------------------------------------------

    def claim(self, count: int, *, settle_within: float, again: Sequence[Claimed] = ()) -> tuple[Claimed, ...]:
        errands: list[Errand] = self._call("claim", partial(self._referee.claim, count, again))
        self.errands.update({(errand.claim.ticket, errand.claim.fence): errand for errand in errands})
        return tuple(errand.claim for errand in errands)

    def settle(self, entries: Sequence[Claimed]) -> None:
        self._call("settle", partial(self._referee.settle, entries))

    # -- liveness ---------------------------------------------------------------------------------------------

    def check_version(self) -> None:
        """There is but one."""

    def beat(self, worker: str, *, renew: bool = False, serving: Any = None) -> Any:
        assert serving is None, "what a simulated worker serves is told by the referee"
        return self._call(f"beat({worker})", partial(self._referee.renew, self._life(worker), renew=renew))

    def held_by(self, worker: str) -> dict[str, int]:
        held: dict[str, int] = self._call(f"held_by({worker})", partial(self._referee.held_by, self._life(worker)))
        return held

    def last_serial(self) -> int:
        serial: int = self._call("last_serial", lambda: self._referee.view.serial)
        return serial

    def sweep(self, worker: str) -> Any:
        batch = self._worker.habits.batch
        return self._call(f"sweep({worker})", partial(self._referee.sweep, self._life(worker), batch))

    def leave(self, worker: str) -> Aftermath:
        self._call(f"leave({worker})", partial(self._referee.leave, self._life(worker)))
        return QUIET

    def listen(self, seconds: float, worker: str = "") -> None:
        """Until the bell of the housekeeping rings."""
        me = self._worker.schedule.current
        assert me is not None
        self._story.listening(me)
        block(Idle(max(1000, round(seconds * SECOND))))
        self._story.stop_listening(me)

    def hush(self) -> None:
        """Nobody waits for the bell any more."""

    def close(self) -> None:
        """It has no connection."""


class VirtualBatch:
    """As `store.together`: what is called here goes out in one exchange."""

    def __init__(self, store: VirtualStore) -> None:
        self._store = store
        self._verbs: list[_Verb] = []

    def admit(self, *args: Any, **kwargs: Any) -> None:
        self._verbs.append(self._store.asking(*args, **kwargs))

    def release(self, *args: Any, **kwargs: Any) -> None:
        self._verbs.append(self._store.releasing(*args, **kwargs))

    def exchange(self) -> list[Any]:
        verbs = self._verbs
        if not verbs:
            return []

        def all_of_them() -> list[Any]:
            return [verb.run() for verb in verbs]

        try:
            outcomes: list[Any] = self._store._call(" + ".join(verb.what for verb in verbs), all_of_them)
        except StoreUnavailable as error:
            return [error] * len(verbs)
        return outcomes


class VirtualOutbox(Outbox):
    """The real one, but for the broker and the result backend that it talks to."""

    def __init__(self, store: VirtualStore, story: Any) -> None:
        self.store: Any = store
        self._story = story

    def _finish(self, entry: Claimed) -> None:
        errand = self.store.errands[entry.ticket, entry.fence]
        block(Sleep(round(self._story.errand_seconds() * SECOND)))
        if not self._story.errand_done(errand):
            raise Unconfirmed("lost")
