"""The cast of the stories: what the messages want, and in which manner they are sent.

All chains take their keys in one order, so that no story ends in a deadlock; deadlocks have tests of their own.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

from celery_limits.declare.chain import ConcurrencyLink, Link

from .actors import c, f, r

__all__ = ["GROUPS", "MANNERS", "OF_GROUPS", "SLOTS", "THEMES", "Chain", "Manner"]

SLOTS: dict[str, list[Link]] = {
    "a": [c("a", 1), c("a", 1), c("a", 2), c("a", 1, on_full="discard"), c("a", 1, max_waiting=1), c("a", 0)],
    "b": [c("b", 2), c("b", 2, weight=2), c("b", 3, weight=2), c("b", 2, max_waiting=2), c("b", 3, on_full="discard")],
    "f": [f("f", 1, every=5), f("f", 2, every=5), f("f", 2, every=5, weight=2), f("f", 1, every=5, on_full="discard")],
    "g": [
        c("g", 2, group="x"),
        c("g", 2, group="y"),
        c("g", 2, group="y", share=3.0),
        c("g", 2, group="z", weight=2),
        c("g", 3, group="x"),
        c("g", 2),
    ],
    "r": [r("r", "1/s"), r("r", "1/s", 2), r("r", "1/s", 2, cost=2), r("r", "1/s"), r("r", "0/s")],
    "s": [r("s", "1/s", group="x"), r("s", "1/s", group="y"), r("s", "1/s", 2, cost=2, group="z"), r("s", "1/s")],
    "z": [c("z", 1), c("z", 2), c("z", 1, on_full="discard"), c("z", 1, max_waiting=1)],
}
"""Every kind of link, key by key, the plainest first, in the order in which chains take them."""

GROUPS: dict[str, list[Link]] = {
    "f": [f("f", 2, every=5, group="x"), f("f", 2, every=5, group="y"), f("f", 3, every=5, group="z", share=2.0)],
    "g": [
        *(c("g", 3, group=group, share=share) for group in "wxyz" for share in (1.0, 3.0)),
        *(c("g", 4, group=group, share=share, weight=2) for group in "xy" for share in (1.0, 0.5)),
        c("g", 3),
        c("g", 2, group="w", max_waiting=2),
    ],
    "p": [
        *(ConcurrencyLink(key="p", limit="workers", group=group) for group in "xyz"),
        ConcurrencyLink(key="p", limit="workers", group="x", share=3.0, weight=2),
        ConcurrencyLink(key="p", limit="workers", on_full="discard"),
        c("p", 2, group="y"),
    ],
    "s": [
        *(r("s", "1/s", 2, group=group, share=share) for group in "wxyz" for share in (1.0, 3.0)),
        *(r("s", "1/s", 3, cost=3, group=group) for group in "xy"),
        r("s", "1/s", 2),
    ],
    "z": [c("z", 2), c("z", 1), c("z", 2, group="x"), c("z", 2, group="y", weight=2)],
}
"""Links that name groups: many groups, shares, costs and weights at few keys."""


@dataclass(frozen=True, repr=False)
class Chain:
    links: tuple[Link, ...]

    def __repr__(self) -> str:
        return f"Chain({' '.join(_brief(link) for link in self.links)})"


def _brief(link: Link) -> str:
    rest = link.model_dump(exclude_defaults=True, exclude={"key", "refresh"})
    return f"{link.key}({', '.join(f'{name}={value}' for name, value in rest.items())})"


class Manner(NamedTuple):
    """How a message is sent: dispatched by which way, acknowledged when, how urgent, for how long worth starting."""

    queue: str
    late: bool
    cut: int | None
    rank: int
    lasts: float | None


def _themes(slots: dict[str, list[Link]], least: int) -> list[list[Chain]]:
    """For so many keys and up to three, chains of nothing else: the plain ones first, since stories are shortened
    towards them, then a fixed mixture."""
    dice = random.Random(7)
    chains: dict[tuple[str, ...], list[Chain]] = {}
    for keys in (keys for size in (1, 2, 3) for keys in combinations(slots, size)):
        plain = Chain(tuple(slots[key][0] for key in keys))
        mixed = [Chain(tuple(dice.choice(slots[key]) for key in keys)) for _ in range(5 * len(keys))]
        chains[keys] = list(dict.fromkeys((plain, *mixed)))
    wide = (keys for size in range(least, 4) for keys in combinations(slots, size))
    return [[chain for few in chains if set(few) <= set(many) for chain in chains[few]] for many in wide]


THEMES = _themes(SLOTS, 2)
"""What the messages of one story may want: few keys, so that they meet."""

OF_GROUPS = [[Chain((link,)) for link in GROUPS[key]] for key in ("g", "p", "s")] + _themes(GROUPS, 1)
"""The same, of messages that name groups."""

WAYS = (("q", False, None), ("", False, 1), ("q", True, 1), ("", True, None))
MANNERS = [
    Manner(queue, late, cut, rank, lasts)
    for lasts in (None, None, 2.0)
    for rank in (0, 0, 3)
    for queue, late, cut in WAYS
]
