"""One chaos run: start everything, load and break it, let it come to rest, and hold what happened to the guarantees."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from celery_limits.store import StoreError
from celery_limits.store.audit import leftovers
from tests.chaos.checker import Check, check_all, outstanding
from tests.chaos.faults import Injector
from tests.chaos.fleet import FORGET, LEASE, Fleet
from tests.chaos.history import History, read
from tests.chaos.load import Load
from tests.chaos.plan import Plan
from tests.waiting import wait_until

__all__ = ["AT_THE_END", "Outcome", "play", "under_way"]

PATIENCE = 90.0
"""Seconds without a new line in the ledger after which nothing more is to be expected, on the busiest machine."""

HUNTING = 20.0
"""The same where a defect was put in, and is to be found soon; and three times that, whatever happens."""

AT_THE_END = frozenset({"5 nothing lost"})
"""Checks that find fault with whatever is still under way."""

Say = Callable[[str], Any]


@dataclass
class Outcome:
    plan: Plan
    checks: list[Check]
    left: list[str]
    history: History
    faults: Counter[str]
    kills: int
    seconds: float
    trouble: list[str] = field(default_factory=list)

    @property
    def violations(self) -> int:
        return sum(len(check.violations) for check in self.checks) + len(self.left)


def play(plan: Plan, fleet: Fleet, say: Say, hunted: frozenset[str] = frozenset()) -> Outcome:
    """`hunted`: checks of which one is to find something. When it has, there is no need to go on."""
    began = time.monotonic()
    load = Load(fleet, plan)
    injector = Injector(fleet, plan, on_deploy=load.redeclare)
    limits = fleet.limits()
    load.start()
    injector.start()
    while load.is_alive():
        load.join(LEASE)
        load.ask_for_results()
        _look(fleet, limits)
        if _seen(fleet, hunted - AT_THE_END):
            load.stopped.set()
    say(f"published; {sum(injector.struck.values())} faults so far. Everything is mended, and worked off.")
    injector.finish()
    left: list[str] = []
    if not hunted:
        _work_off(fleet, injector, load, PATIENCE)
        injector.restart_the_fallen()
        left = _come_to_rest(fleet, limits)
    elif not _seen(fleet, hunted - AT_THE_END):
        _work_off(fleet, injector, load, HUNTING, 3 * HUNTING)
    history = read(fleet.ledger.lines())
    trouble = [*injector.failures, *([f"the load failed: {load.failure!r}"] if load.failure else [])]
    seconds = time.monotonic() - began
    return Outcome(plan, check_all(history), left, history, injector.struck, injector.kills, seconds, trouble)


def _look(fleet: Fleet, limits: Any) -> None:
    """An audit of what is going on, unless Redis is away."""
    try:
        findings = [str(finding) for finding in limits.audit()]
    except StoreError:
        return
    fleet.ledger.note("audit", findings=findings)


def _seen(fleet: Fleet, hunted: frozenset[str]) -> bool:
    return bool(hunted) and any(c.name in hunted and c.violations for c in check_all(read(fleet.ledger.lines())))


def _work_off(fleet: Fleet, injector: Injector, load: Load, patience: float, at_most: float = float("inf")) -> None:
    """Until every call has ended, or nothing has happened for long."""
    size, since = -1, time.monotonic()
    given_up = since + at_most
    load.ask_for_results()
    while outstanding(read(fleet.ledger.lines())):
        if (now := fleet.ledger.path.stat().st_size) != size:
            size, since = now, time.monotonic()
        if time.monotonic() - since > patience or time.monotonic() > given_up:
            return
        injector.restart_the_fallen()
        load.ask_for_results()
        time.sleep(0.5)


def _come_to_rest(fleet: Fleet, limits: Any) -> list[str]:
    """What is left once the last worker has gone, and what the audit finds."""
    waited = FORGET + PATIENCE
    with suppress(AssertionError):  # then it is left over
        wait_until(lambda: not under_way(fleet, limits), "all is quiet", within=waited, sleep=lambda _: time.sleep(0.5))
    found = under_way(fleet, limits) + [str(finding) for finding in limits.audit()]
    for place in fleet.places:
        place.wait_ready()  # one that is starting would not leave, but die
        if place.worker is not None and place.worker.is_running:
            place.worker.signal(signal.SIGTERM)
    for worker in [*fleet.ended, *(place.worker for place in fleet.places if place.worker)]:
        try:
            worker.wait_gone()
        except AssertionError as error:
            found.append(f"{error}")
    return [*found, *leftovers(limits.store), *fleet.site.left()]


def under_way(fleet: Fleet, limits: Any) -> list[str]:
    """Of the store, everything but what belongs to live workers."""
    client: Any = limits.store.client
    left = []
    for name in leftovers(limits.store):
        if name.startswith("worker:"):
            raw = f"{limits.store.prefix}{name}"
            left += [f"{name} {member.decode()}" for member in client.zrange(raw, 0, -1) if member != b"!"]
        elif name not in ("leases", "places", "pulse"):
            left.append(name)
    # The dead are given time, and the last to leave would not wait for it.
    running = {place.worker.name for place in fleet.places if place.worker and place.worker.is_running}
    leases = [raw.decode() for raw in client.zrange(f"{limits.store.prefix}leases", 0, -1)]
    left += [f"lease of {name}" for name in leases if name.partition("/")[0] not in running]
    return left or fleet.site.left()
