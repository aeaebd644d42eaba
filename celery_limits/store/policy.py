"""The times that govern a namespace, in seconds, and the form the scripts take them in."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Policy", "microseconds"]


def microseconds(seconds: float) -> int:
    return round(seconds * 1_000_000)


@dataclass(frozen=True, slots=True)
class Policy:
    """The times after which the store gives up waiting."""

    lease: float = 30.0
    """Without a heartbeat, before a worker is declared dead."""

    grant_timeout: float = 30.0
    """Before a granted ticket that no worker has picked up gives its slots to others."""

    place_ttl: float = 86_400.0
    """For which a ticket whose message is with the broker keeps its place and its paid tokens."""

    revoke_ttl: float = 10_800.0
    """For which a cancelled task id is refused; as long as Celery's workers remember a revoke."""

    refresh_timeout: float = 30.0
    """Before the refresh of a floating limit is given to another worker."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 10**9:
                raise ValueError(f"{name}={value!r}: a number of seconds above 0 is needed")
