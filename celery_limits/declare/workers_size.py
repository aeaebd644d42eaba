"""The size `WORKERS`: as many as the pools of the live workers that consume a task's queue have places.

It is a name, not a number: the store knows the places from the heartbeats (store/lua/include/serving.lua), and the size
follows them. On the wire it is the text "workers", in the place of the number.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, Literal, TypeAlias

__all__ = ["FOLLOWS", "WORKERS", "Workers", "WorkersText"]


class Workers(Enum):
    """The type of `WORKERS`, its only value."""

    WORKERS = "workers"

    def __repr__(self) -> str:
        return self.name


WORKERS: Final = Workers.WORKERS
WorkersText: TypeAlias = Literal["workers"]
FOLLOWS: Final[WorkersText] = "workers"
"""In links, which have plain values only."""
