"""What a grant costs at a key with groups: however long the line of one group is, and however many groups wait."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

from celery_limits.declare.chain import ConcurrencyLink, Link
from celery_limits.store import Store
from celery_limits.store.outcomes import Parked
from tests.bench.report import Row
from tests.bench.rounds import Block, interleave, on_server, spread
from tests.bench.world import MESSAGE, QUEUE, THREE, WORKER, World, delivery, ticket
from tests.store.post import Post

__all__ = ["SHARES_GOAL", "shares"]

FEW = 10
SHARES_GOAL = 1.5
"""Times what a turn costs with FEW waiters, in one group or in as many."""


class SharedWorld(World):
    """`waiters` stand at the key "busy", in so many groups; the one slot of it is held."""

    def __init__(self, binary: str, *, waiters: int, groups: int) -> None:
        super().__init__(binary, waiters=waiters)
        self._groups = groups
        self._parked = 0

    def _links(self, i: int) -> tuple[Link, ...]:
        """Without the checks of a model: there are a hundred thousand different ones."""
        group = f"tenant-{i % self._groups}"
        return (ConcurrencyLink.model_construct(key="busy", limit=1, group=group), *THREE[1:])

    def _next_links(self) -> tuple[Link, ...]:
        self._parked += 1
        return self._links(self._parked)

    def _fill_line(self) -> None:
        self.holder = ticket()
        self.fence = self._admit(self.holder, self._links(0))
        self.park()

        def park(store: Store, _: int) -> object:
            return store.admit(ticket(), self._next_links(), WORKER, delivery=delivery(), queue=QUEUE, message=MESSAGE)

        self._bulk(f"waiters in {self._groups:,} groups", self.waiters - 1, park, Parked)
        self.turns(1)()

    def park(self) -> None:
        outcome = self.store.admit(
            ticket(), self._next_links(), WORKER, delivery=delivery(), queue=QUEUE, message=MESSAGE
        )
        assert isinstance(outcome, Parked), outcome

    def turns(self, units: int) -> Callable[[], None]:
        """As on a key without groups; who is granted is read from the queue, which is not measured."""
        store, post, client = self.store, Post(self.store), self.client

        def run() -> None:
            for _ in range(units):
                store.release(self.holder, WORKER, self.fence)
                ready: Any = client.zrange(f"{store.prefix}ready:{QUEUE}", 0, 0)
                self.holder = ready[0].decode()
                (one,) = post.fetch(WORKER, 1, acked=self.acked, queue=QUEUE) or []
                self.fence = self._admit(self.holder, self._links(0), b"", one.field)
                self.acked = [one.field]
                self.park()

        return run


def shares(binary: str, seconds: float, units: int, many: int) -> Iterator[Row]:
    with ExitStack() as stack:
        plain = stack.enter_context(World(binary, waiters=FEW))
        in_one = {n: stack.enter_context(SharedWorld(binary, waiters=n, groups=1)) for n in (FEW, many)}
        in_many = {n: stack.enter_context(SharedWorld(binary, waiters=n, groups=n)) for n in (FEW, many)}
        blocks: dict[str, Block] = {"plain": on_server(plain.client, plain.turns, "evalsha")}
        for name, worlds in (("one", in_one), ("many", in_many)):
            for n, world in worlds.items():
                blocks[f"{name} {n}"] = on_server(world.client, partial(world.turns), "evalsha")
        cost = interleave("shares", blocks, seconds=seconds, units=units)
    section = f"Server time of a turn on a waited key with groups, against {FEW} waiters"
    text = f"{many:,} wait in one group"
    yield Row(section, text, spread(cost[f"one {many}"], cost[f"one {FEW}"]), "times", SHARES_GOAL)
    text = f"{many:,} groups, one of each waits"
    yield Row(section, text, spread(cost[f"many {many}"], cost[f"many {FEW}"]), "times", SHARES_GOAL)
    yield Row(section, f"{FEW} groups wait", spread(cost[f"many {FEW}"], cost["plain"]), "turns without groups")
