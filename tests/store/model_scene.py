"""What every call of the model-based tests has in common: a look before, a look after, and a judgement on the two."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from celery_limits.store import Store
from celery_limits.store.outcomes import Aftermath

from .actors import SECOND, Clock
from .model import POLICY, Body, Floating, Request, World
from .model_checks import Op, judge
from .model_view import Reader
from .post import Post

__all__ = ["Scene", "judged"]

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", bound="Scene")


def judged(step: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Marks the play unsound while a step is under way, and so for good when the step's judgement fails."""

    @wraps(step)
    def wrapper(play: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        play.sound = False
        result = step(play, *args, **kwargs)
        play.sound = True
        return result

    return wrapper


class Scene:
    def __init__(self, store: Store, clock: Clock, reader: Reader) -> None:
        self.store, self.clock, self.reader = store, clock, reader
        self.world = World(clock)
        self.view = reader.read()
        self.post = Post(store)
        self.deliveries = 0
        self.sound = True

    # -- every call ends here -----------------------------------------------------------------------------

    def after(self, verb: str, after: Aftermath | None = None, **about: Any) -> None:
        op = Op(verb, self.clock.now, ahead=self.clock.now - self.clock.server, **about)
        before, self.view = self.view, self.reader.read()
        for body in [b for b in self.world.bodies if b.worker.crashed and not self.runs(b)]:
            self.world.bodies.remove(body)
            self.world.ghosts.append(body.admission)
        self._forget_floating(op.now)
        judge(self.world, op, before, self.view)
        if after is not None:
            fresh = [t for t in self.view.outbox if t not in before.outbox and self.view.outbox[t] <= op.now + 64]
            assert after.outbox >= len(fresh), f"{verb} put {fresh} into the outbox and did not say so"
            self.asked(after, op)

    def _forget_floating(self, now: int) -> None:
        """Idle for long enough, a floating limit is again what tasks declare."""
        for key, known in self.world.floating.items():
            known.forgotten = 0
            if known.fresh and "f.fresh" not in self.view.notes.get(key, {}):
                assert known.fresh + POLICY.place_ttl * SECOND <= now, f"the size of {key} is forgotten too soon"
                self.world.floating[key] = Floating(forgotten=known.size or 0)

    def unchanged(self, what: object) -> None:
        """Nothing was written: not a byte of the namespace has changed."""
        before, self.view = self.view, self.reader.read()
        assert before.same_as(self.view), f"{what} changed the store"
        assert self.view is before or not self.view.trace, f"{what} has walked: {self.view.trace}"

    def runs(self, body: Body) -> bool:
        record = self.view.tickets.get(body.message.ticket)
        return record is not None and (record.state, record.worker, record.fence) == ("running", *body.admission[1:])

    def asked(self, after: Aftermath, op: Op) -> None:
        """L14: a floating limit is refreshed by one worker at a time, and not before its time."""
        for key, token, name in after.refreshes:
            known = self.world.floating[key]
            assert name == "shop:size"
            assert known.fresh <= op.now, f"{key} is to be refreshed too soon"
            assert not (known.asked and known.asked.stands(op.now)), f"{key} is refreshed twice at once"
            worker = self.world.workers[op.worker]
            until = op.now + round(POLICY.refresh_timeout * SECOND)
            known.asked = Request(key, token, worker, worker.life, until)
            self.world.requests.append(known.asked)
