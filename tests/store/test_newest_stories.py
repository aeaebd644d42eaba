"""Newest wins in random stories: whatever comes late, dies, is cancelled or paused, the newest is never superseded by
an older one, members of a canvas never are, and nothing is exceeded or left."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from celery_limits.declare.chain import DebounceLink, Link
from celery_limits.store import Store
from celery_limits.store.audit import audit
from celery_limits.store.outcomes import Admitted, Discarded, Revoked, Superseded
from tests.store.actors import Clock, Worker, c, holders, line_at, live_on, raw_client, sweep_all
from tests.store.test_newest_wins import arrival_of

LIMIT, MOST = 2, 2
KINDS: dict[str, tuple[Link, Link]] = {
    "replace": (c("doc", LIMIT, on_full="replace", max_waiting=MOST), c("doc", LIMIT)),
    "preempt": (c("doc", LIMIT, on_full="preempt", max_waiting=MOST), c("doc", LIMIT)),
    "debounce": (DebounceLink(key="doc", quiet=3.0, at_most=9.0), DebounceLink(key="doc", quiet=3.0, keep=True)),
}
"""A link of each kind, and what a member of a canvas has in its place."""


@dataclass
class Story:
    """`late` has messages that were numbered when they were published, and have not come to a gate yet."""

    store: Store
    clock: Clock
    kind: str
    dice: random.Random
    workers: list[Worker] = field(default_factory=list)
    late: list[tuple[str, str]] = field(default_factory=list)
    fates: dict[str, str] = field(default_factory=dict)
    arrived: dict[str, int] = field(default_factory=dict)
    members: set[str] = field(default_factory=set)

    def links(self, ticket: str) -> tuple[Link, ...]:
        own = KINDS[self.kind][ticket in self.members]
        return (own, c("behind", 2)) if self.kind == "debounce" or int(ticket[1:-2]) % 3 == 0 else (own,)

    # -- steps ------------------------------------------------------------------------------------------------

    def publish(self) -> None:
        ticket = f"t{len(self.arrived)}.n"
        claim = arrival_of(self.store, ticket)
        self.arrived[ticket] = int(claim.partition("-")[0])
        if self.dice.random() < 0.2:
            self.members.add(ticket)
        self.late.append((ticket, claim))
        if self.dice.random() < 0.7:
            self.come(-1)

    def come(self, which: int) -> None:
        ticket, claim = self.late.pop(which)
        worker = self.dice.choice(self.workers)
        outcome = worker.deliver(ticket, *self.links(ticket), arrival=claim)
        if isinstance(outcome, Superseded):
            self._superseded(ticket, outcome.by)
        elif isinstance(outcome, Revoked):
            self.fates[ticket] = "revoked"
        assert not isinstance(outcome, Discarded)

    def come_late(self) -> None:
        if self.late:
            self.come(self.dice.randrange(len(self.late)))

    def finish(self) -> None:
        worker = self.dice.choice(self.workers)
        if worker.running:
            ticket = self.dice.choice(list(worker.running))
            worker.finish(ticket)
            self.fates[ticket] = "ran"

    def pick_up(self) -> None:
        worker = self.dice.choice(self.workers)
        worker.fetch(3)
        for ticket in [ticket for ticket in worker.fields if ticket not in worker.running]:
            outcome = worker.deliver(ticket, *self.links(ticket))
            if isinstance(outcome, Superseded):
                self._superseded(ticket, outcome.by)
            elif not isinstance(outcome, Admitted):
                self.fates.setdefault(ticket, "revoked") if isinstance(outcome, Revoked) else None

    def obey(self) -> None:
        """A worker ends what it is to end, as a process that dies at once."""
        for worker in self.workers:
            for ticket, by in self.store.sweep(worker.name).orders:
                assert ticket in worker.running
                worker.finish(ticket)
                self._superseded(ticket, by)

    def cancel(self) -> None:
        if self.arrived and self.dice.random() < 0.3:
            ticket = self.dice.choice(list(self.arrived))
            outcome = self.store.cancel(ticket[:-2])
            for ended in outcome.ended:
                self.fates[ended.ticket] = "revoked"
            self.store.settle(outcome.ended)

    def time_passes(self) -> None:
        live_on(self.clock, self.dice.choice((0.1, 1.0, 4.0)), *self.workers)

    def steer(self) -> None:
        self.store.pause("doc")
        self.publish()
        self.check()
        self.store.resume("doc")

    def crash(self) -> None:
        """One dies, and another comes; what it ran and had acknowledged early is lost."""
        dead = self.workers.pop(self.dice.randrange(len(self.workers)))
        for ticket in dead.running:
            self.fates.setdefault(ticket, "lost")
        self.workers.append(Worker(self.store, f"w{len(self.arrived)}-{self.clock.now}"))
        live_on(self.clock, 2 * self.store.policy.lease, *self.workers)

    # -- what must hold ---------------------------------------------------------------------------------------

    def _superseded(self, ticket: str, by: str) -> None:
        assert ticket not in self.members, f"{ticket} is a member of a canvas"
        assert self.arrived[f"{by}.n"] > self.arrived[ticket], f"{ticket} is superseded by {by}, which came before it"
        assert ticket not in self.fates, f"{ticket} was {self.fates.get(ticket)} before"
        self.fates[ticket] = f"superseded {by}"
        assert self.store.explain(ticket[:-2]).superseded_by is not None

    def check(self) -> None:
        claimed = [entry for entry in self.store.claim(100) if entry.reason is not None]
        for entry in claimed:
            if (entry.reason or "").startswith("superseded "):
                self._superseded(entry.ticket, (entry.reason or "").partition(" ")[2])
        self.store.settle(claimed)
        sweep_all(self.store)
        assert audit(self.store) == []
        assert len(holders(self.store, "doc")) <= LIMIT
        most = 1 if self.kind == "debounce" else MOST
        begun = {ticket for worker in self.workers for ticket in worker.running}
        line = [ticket for ticket in line_at(self.store, "doc") if ticket not in self.members | begun]
        client: Any = raw_client(self.store)
        replaceable = {raw.decode() for raw in client.zrange(f"{self.store.prefix}newest:doc", 0, -1)}
        assert replaceable <= set(line)
        assert len(replaceable) <= most

    def wind_up(self) -> None:
        while self.late:
            self.come(0)
            self.check()
        for _ in range(200):
            self.obey()
            self.check()
            for worker in self.workers:
                for ticket in list(worker.running):
                    worker.finish(ticket)
                    self.fates[ticket] = "ran"
                self.pick_up()
            live_on(self.clock, 1.0, *self.workers)
            if len(self.fates) == len(self.arrived) and not any(worker.running for worker in self.workers):
                break
        assert self.fates.keys() == self.arrived.keys(), "some never ended"
        newest = max(self.arrived.keys() - self.members, key=self.arrived.__getitem__, default=None)
        assert newest is None or not self.fates[newest].startswith("superseded"), "the newest must win"
        assert all(not fate.startswith("superseded") for t, fate in self.fates.items() if t in self.members)
        for worker in self.workers:
            while self.store.leave(worker.name).more:
                pass


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(12))
def test_the_newest_wins_whatever_happens(store: Store, clock: Clock, kind: str, seed: int) -> None:
    story = Story(store, clock, kind, random.Random(f"{kind} {seed}"))
    story.workers = [Worker(store, name) for name in ("w1", "w2")]
    steps = [story.publish] * 6 + [story.finish, story.pick_up] * 3 + [story.come_late, story.obey] * 2
    steps += [story.cancel, story.time_passes, story.steer, story.crash]
    for _ in range(60):
        story.dice.choice(steps)()
        story.check()
    story.wind_up()
