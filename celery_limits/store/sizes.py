"""The sizes that tasks declare for one key, which may differ: by account, or between two apps."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

__all__ = ["declared_sizes"]

_CLASS = re.compile(r"g?c:(\d+)")


def declared_sizes(letter: str, some: Iterable[Any], classes: Iterable[str]) -> tuple[int, ...]:
    """Of a concurrency key: of all who wait, by their classes, and of some that hold it."""
    if letter != "c":
        return ()
    waiting = (found[1] for one in classes if (found := _CLASS.fullmatch(one)))
    return tuple(sorted({int(size) for size in (*some, *waiting) if str(size).isdecimal()}))
