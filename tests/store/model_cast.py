"""The cast of the stories: what the messages want, and in which manner they are sent.

All chains take their keys in one order, so that no story ends in a deadlock; deadlocks have tests of their own.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

from celery_limits.chain import Link

from .actors import c, f, r

__all__ = ["MANNERS", "SLOTS", "THEMES", "Chain", "Manner"]

SLOTS: dict[str, list[Link]] = {
    "a": [c("a", 1), c("a", 1), c("a", 2), c("a", 1, on_full="discard"), c("a", 1, max_waiting=1), c("a", 0)],
    "b": [c("b", 2), c("b", 2, weight=2), c("b", 3, weight=2), c("b", 2, max_waiting=2), c("b", 3, on_full="discard")],
    "f": [f("f", 1, every=5), f("f", 2, every=5), f("f", 2, every=5, weight=2), f("f", 1, every=5, on_full="discard")],
    "r": [r("r", "1/s"), r("r", "1/s", 2), r("r", "1/s", 2, cost=2), r("r", "1/s"), r("r", "0/s")],
    "z": [c("z", 1), c("z", 2), c("z", 1, on_full="discard"), c("z", 1, max_waiting=1)],
}
"""Every kind of link, key by key, the plainest first, in the order in which chains take them."""


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


def _themes() -> list[list[Chain]]:
    """For every pair and triple of keys, chains of nothing else: the plain ones first, since stories are shortened
    towards them, then a fixed mixture."""
    dice = random.Random(7)
    chains: dict[tuple[str, ...], list[Chain]] = {}
    for keys in (keys for size in (1, 2, 3) for keys in combinations(SLOTS, size)):
        plain = Chain(tuple(SLOTS[key][0] for key in keys))
        mixed = [Chain(tuple(dice.choice(SLOTS[key]) for key in keys)) for _ in range(5 * len(keys))]
        chains[keys] = list(dict.fromkeys((plain, *mixed)))
    wide = (keys for size in (2, 3) for keys in combinations(SLOTS, size))
    return [[chain for few in chains if set(few) <= set(many) for chain in chains[few]] for many in wide]


THEMES = _themes()
"""What the messages of one story may want: few keys, so that they meet."""

WAYS = (("q", False, None), ("", False, 1), ("q", True, 1), ("", True, None))
MANNERS = [
    Manner(queue, late, cut, rank, lasts)
    for lasts in (None, None, 2.0)
    for rank in (0, 0, 3)
    for queue, late, cut in WAYS
]
