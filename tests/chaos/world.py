"""What is limited in the world of the chaos run: keys, their sizes, and how a deploy changes them.

Everything here is a function of names, so that the publisher, the workers and the checker agree without talking.
"""

from __future__ import annotations

from zlib import crc32

__all__ = ["LINKS", "NEW", "OLD", "keys_of", "rate_of", "size_of"]

OLD, NEW = "old", "new"
"""The two sets of declarations: before and after the deploy."""

LINKS = ("tenant", "region", "depot", "api")
"""Of a chain, in the order in which they are walked. A chain of n links has the first n; the last is a rate."""


def size_of(key: str, declared: str) -> int:
    """Tenants and lines are narrow, depots have room for weights. After the deploy every third key has another size."""
    number = crc32(key.encode())
    kind = key.partition(":")[0]
    size = {"tenant": 1 + number % 3, "region": 3 + number % 4, "depot": 4 + number % 3}.get(kind, 1)
    if declared == NEW and kind != "line" and number % 3 == 0:
        size += 1 if number % 2 else -1
    return max(size, 3 if kind == "depot" else 1)


def rate_of(key: str) -> tuple[float, int]:
    """Tokens a second, and the burst."""
    return 4.0 + crc32(key.encode()) % 8, 5


def keys_of(arguments: dict[str, str], weight: int) -> dict[str, int]:
    """The concurrency keys of a call and how much it takes of each."""
    keys = {f"{kind}:{arguments[kind]}": 1 for kind in ("tenant", "region", "line") if arguments.get(kind)}
    if arguments.get("depot"):
        keys[f"depot:{arguments['depot']}"] = weight
    return keys
