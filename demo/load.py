"""Who orders what, and when: one tenant floods with all it has at once, the two others come in at a steady pace."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Order", "orders"]


class Order(NamedTuple):
    """An order that is sent so many seconds after the start."""

    at: float
    tenant: str
    number: int


def orders(count: int) -> list[Order]:
    """`count` orders, by their time: six of ten are the flood."""
    flood = [Order(0.0, "acme", number) for number in range(count * 6 // 10)]
    small = (count - len(flood)) // 2
    birch = [Order(0.2 * number, "birch", number) for number in range(count - len(flood) - small)]
    cedar = [Order(1.0 + 0.25 * number, "cedar", number) for number in range(small)]
    return sorted([*flood, *birch, *cedar])
