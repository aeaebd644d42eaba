"""The times that govern a namespace, in seconds, and the form the scripts take them in."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Policy", "microseconds"]


def microseconds(seconds: float) -> int:
    return round(seconds * 1_000_000)


@dataclass(frozen=True, slots=True)
class Policy:
    """How long the store waits for whom."""

    lease: float = 30.0
    """A worker that has not been heard of for so long is dead."""

    grant_timeout: float = 30.0
    """A grant that no worker picks up for so long gives its slots to those who can use them."""

    forget: float = 86_400.0
    """A ticket whose message is with the broker keeps its place and its paid tokens for so long."""

    remember: float = 10_800.0
    """A cancelled task id is refused for so long: as long as Celery's workers remember a revoke."""

    refresh_timeout: float = 30.0
    """A floating limit whose refresh has not been answered for so long is given to another worker."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 10**9:
                raise ValueError(f"{name}={value!r}: a number of seconds above 0 is needed")
