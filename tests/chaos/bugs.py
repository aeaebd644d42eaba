"""Defects that the chaos run must catch, put into the workers' own processes and nowhere else.

Each is one that systems of this kind have shipped. `python -m tests.chaos --bug NAME` runs with it, and says whether
one of the checks named here has seen it; a run that fails for another reason has not caught it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from celery_limits.errors import CorruptChain
from celery_limits.lease.heartbeat import Heartbeat
from celery_limits.store.outcomes import Full, Parked, Stale
from celery_limits.store.scripts import load
from celery_limits.store.store import Store
from celery_limits.transport.queue_scripts import number_of
from celery_limits.worker import gate
from tests.simulation.seeded_bugs import SEEDED_BUGS
from tests.store.mutations import Mutation

__all__ = ["BUG", "BUGS", "Bug"]

BUG = "LIMITS_CHAOS_BUG"
"""The environment variable that names the one to put in."""

OVER, LOST, ONCE, SOUND, STAY, BYPASS = (
    "1 never over",
    "5 nothing lost",
    "5 ends once",
    "3-4 sound on the way",
    "workers stay",
    "10 no silent bypass",
)
BLOCKS = "7 no cross-blocking"


@dataclass(frozen=True)
class Bug:
    name: str
    put_in: Callable[[], None]
    seen_by: frozenset[str]
    faults: tuple[str, ...] = ()
    """Those without which it does not show; a hunt has only these. None: it shows in any run."""
    seed: int = 1
    """Of a smoke run that catches it."""


def _mutated(mutation: Mutation) -> Callable[[], None]:
    """The scripts are shared by all who call them, so they are changed where they are."""

    def put_in() -> None:
        for mutated in [mutation.scripts()(verb) for verb in mutation.verbs]:
            script = load(mutated.verb)
            script.text, script.sha = mutated.text, mutated.sha

    return put_in


def _release_nothing() -> None:
    Store.release = lambda *_, **__: Stale()  # type: ignore[method-assign]


def _never_renew() -> None:
    def beat(heartbeat: Any, name: str) -> bool:
        heartbeat._on_renewed(name, time.monotonic())
        return True

    Heartbeat._beat = beat  # type: ignore[method-assign,assignment]


def _run_what_nobody_understands() -> None:
    plan_of = gate.plan_of  # type: ignore[attr-defined]

    def careless(request: Any, *, trust: bool = True) -> Any:
        try:
            return plan_of(request, trust=trust)
        except CorruptChain:
            return None

    gate.plan_of = careless  # type: ignore[attr-defined]


def _acknowledge_before_parking() -> None:
    """Two steps instead of one script, and something slow between them."""
    admit = Store.admit

    def in_two_steps(store: Any, ticket: str, links: Any, worker: str, *, field: str = "", **more: Any) -> Any:
        outcome = admit(store, ticket, links, worker, **more)
        if not field or not isinstance(outcome, Full):
            return outcome
        delivery = f"{store.prefix}unacked:{worker}"
        number = number_of(field)
        stored = b"".join(store.client.zrangebyscore(delivery, number, number))
        store.client.zremrangebyscore(delivery, number, number)
        time.sleep(2)
        return admit(store, ticket, links, worker, **{**more, "message": stored.split(b"\n", 4)[4]})

    Store.admit = in_two_steps  # type: ignore[method-assign,assignment]


def _wait_where_it_is() -> None:
    """Whoever has something that must wait does nothing else any more."""
    drop = gate.Gate._drop

    def wait(found: gate.Gate, passage: Any, intent: Any) -> None:
        if isinstance(intent.outcome, Parked):
            time.sleep(60)
        drop(found, passage, intent)

    gate.Gate._drop = wait  # type: ignore[method-assign,assignment]


_SEEDED = {bug.mutation.name: bug.mutation for bug in SEEDED_BUGS}

_EVERYONE = "'leases', '-inf', '+inf'"

_IN_SCRIPTS = (
    (_SEEDED["one-more-than-the-limit"], {OVER}, ()),
    (_SEEDED["outage-taken-for-death"], {STAY, OVER}, ("redis away",)),
    (_SEEDED["dead-are-not-buried"], {LOST}, ()),
    (
        Mutation("reaped-without-a-look-at-the-lease", ("sweep",), (("'leases', '-inf', whole(now)", _EVERYONE),), ""),
        {STAY, OVER},
        (),
    ),
    (Mutation("nobody-is-woken", ("release",), (("while freed[i] do", "while false do"),), ""), {LOST, SOUND}, ()),
)  # fmt: skip

BUGS = {
    bug.name: bug
    for bug in (
        Bug("release-does-nothing", _release_nothing, frozenset({LOST})),
        Bug("lease-never-renewed", _never_renew, frozenset({STAY, OVER, ONCE})),
        Bug("unknown-header-runs-unlimited", _run_what_nobody_understands, frozenset({BYPASS})),
        Bug("acknowledged-before-parked", _acknowledge_before_parking, frozenset({LOST}), ("kill",)),
        Bug("waits-where-it-is", _wait_where_it_is, frozenset({BLOCKS}), ("pause",)),
        *(Bug(mutation.name, _mutated(mutation), frozenset(checks), only) for mutation, checks, only in _IN_SCRIPTS),
    )
}
