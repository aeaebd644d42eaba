"""Links: one limit of one message, resolved to plain values, strict and immutable.

They are what travels in a message's header and what the store walks. How they come from a declaration is left to
`chain`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, lru_cache
from math import inf
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from celery_limits.errors import Refused, shorten

from .debounce import MAX_QUIET, MIN_QUIET, check_times
from .limits import (
    MAX_EVERY,
    MAX_SHARE,
    MAX_SIZE,
    MAX_WEIGHT,
    MIN_EVERY,
    MIN_SHARE,
    NEWEST_WINS,
    OnFull,
    check_cost,
    check_refresh,
    check_weight,
    parse_rate,
)
from .template import check_group, check_key
from .workers_size import FOLLOWS, WorkersText

__all__ = [
    "HOLDING",
    "AnyLink",
    "ConcurrencyLink",
    "DebounceLink",
    "FloatingLink",
    "Link",
    "RateLink",
    "concurrency_link",
    "debounce_link",
    "floating_link",
    "rate_link",
    "stricter_line",
]

HOLDING = frozenset({"concurrency", "floating"})
"""The kinds of which a task has a slot until it ends."""

_Key = Annotated[str, AfterValidator(check_key)]
_Group = Annotated[str, AfterValidator(check_group)]
_Share = Annotated[float, Field(ge=MIN_SHARE, le=MAX_SHARE, allow_inf_nan=False)]
_Count = Annotated[int, Field(ge=0, le=MAX_SIZE)]
_Weight = Annotated[int, Field(ge=1, le=MAX_WEIGHT)]


class _Link(BaseModel):
    """One limit of one message, resolved to plain values."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    kind: str
    key: _Key
    group: _Group | None = None
    """Whose turn it is among those that share the key; None is the group ""."""
    share: _Share = 1.0

    @cached_property
    def wire(self) -> Mapping[str, Any]:
        """JSON-able, fields at their defaults left out. One dict for all who ask: copy it to change it."""
        return {"kind": self.kind, **self.model_dump(exclude_defaults=True)}

    @model_validator(mode="after")
    def _share_is_of_a_group(self) -> _Link:
        if self.group is None and self.share != 1:
            raise Refused(f"share {self.share:g} without a group")
        return self


class ConcurrencyLink(_Link):
    kind: Literal["concurrency"] = "concurrency"
    limit: _Count | WorkersText
    """"workers": the places of the live workers that consume the message's queue."""
    weight: _Weight = 1
    on_full: OnFull = "wait"
    max_waiting: _Count | None = None
    begun: bool = False
    """The task has begun before, as a retry has: it is never discarded, and no line is longer for it."""

    @model_validator(mode="after")
    def _can_run(self) -> ConcurrencyLink:
        if self.limit != FOLLOWS:
            check_weight(self.weight, self.limit)
        _check_newest(self)
        return self

    def waiting(self) -> ConcurrencyLink:
        return concurrency_link(self.key, self.limit, self.weight, "wait", None, self.group, self.share)

    def as_begun(self) -> ConcurrencyLink:
        return ConcurrencyLink(
            key=self.key, limit=self.limit, weight=self.weight, group=self.group, share=self.share, begun=True
        )

    def stricter(self, other: ConcurrencyLink) -> ConcurrencyLink:
        """One link as strict as both; they have one key."""
        limit, weight = _smaller(self, other), max(self.weight, other.weight)
        return concurrency_link(self.key, limit, weight, *stricter_line(self, other), *_one_group(self, other))


class FloatingLink(_Link):
    """`refresh` is here to be shown and compared. What runs is what the worker's own task declares."""

    kind: Literal["floating"] = "floating"
    default: _Count
    every: Annotated[float, Field(ge=MIN_EVERY, le=MAX_EVERY, allow_inf_nan=False)]
    refresh: Annotated[str, AfterValidator(check_refresh)]
    weight: _Weight = 1
    on_full: OnFull = "wait"
    max_waiting: _Count | None = None
    begun: bool = False

    def as_begun(self) -> FloatingLink:
        return FloatingLink(
            key=self.key,
            default=self.default,
            every=self.every,
            refresh=self.refresh,
            weight=self.weight,
            group=self.group,
            share=self.share,
            begun=True,
        )

    @model_validator(mode="after")
    def _lets_one_wait(self) -> FloatingLink:
        _check_newest(self)
        return self

    def waiting(self) -> FloatingLink:
        size = (self.default, self.every, self.refresh, self.weight)
        return floating_link(self.key, *size, "wait", None, self.group, self.share)

    def stricter(self, other: FloatingLink) -> FloatingLink:
        """One link as strict as both; they have one key and one refresh function."""
        default, every = min(self.default, other.default), min(self.every, other.every)
        weight = max(self.weight, other.weight)
        line, fair = stricter_line(self, other), _one_group(self, other)
        return floating_link(self.key, default, every, self.refresh, weight, *line, *fair)


class RateLink(_Link):
    kind: Literal["rate"] = "rate"
    rate: str
    """In the one form that `parse_rate` writes, so that equal links are equal."""
    burst: Annotated[int, Field(ge=1, le=MAX_SIZE)]
    cost: _Weight = 1

    @cached_property
    def interval_us(self) -> float | None:
        """Microseconds from one token to the next; None when the rate is 0 and nothing passes."""
        return parse_rate(self.rate).interval_us

    @model_validator(mode="after")
    def _can_pass(self) -> RateLink:
        canonical, interval = parse_rate(self.rate)
        if canonical != self.rate:
            raise Refused(f"rate {shorten(self.rate)} should be written {canonical!r}")
        check_cost(self.cost, self.burst, interval)
        return self

    def stricter(self, other: RateLink) -> RateLink:
        """One link as strict as both; they have one key."""
        slower = max(self, other, key=lambda link: inf if link.interval_us is None else link.interval_us)
        cost = max(self.cost, other.cost)
        # Without a declared burst it is the call's own cost, so the smaller one may be too small for both.
        burst = max(cost, min(self.burst, other.burst))
        return rate_link(self.key, slower.rate, burst, cost, *_one_group(self, other))


_Seconds = Annotated[float, Field(ge=MIN_QUIET, le=MAX_QUIET, allow_inf_nan=False)]


class DebounceLink(_Link):
    kind: Literal["debounce"] = "debounce"
    quiet: _Seconds
    at_most: _Seconds | None = None
    keep: bool = False
    """Never superseded: it passes with the newest."""

    @model_validator(mode="after")
    def _can_pass(self) -> DebounceLink:
        check_times(self.quiet, self.at_most)
        if self.group is not None:
            raise Refused("a debounce has no groups")
        return self

    def waiting(self) -> DebounceLink:
        return debounce_link(self.key, self.quiet, self.at_most, True)

    def stricter(self, other: DebounceLink) -> DebounceLink:
        """One link as strict as both; they have one key."""
        quiet = max(self.quiet, other.quiet)
        bounds = [link.at_most for link in (self, other) if link.at_most is not None]
        at_most = max(quiet, min(bounds)) if bounds else None
        return debounce_link(self.key, quiet, at_most, self.keep or other.keep)


Link: TypeAlias = ConcurrencyLink | FloatingLink | RateLink | DebounceLink
AnyLink = Annotated[Link, Field(discriminator="kind")]


def stricter_line(
    one: ConcurrencyLink | FloatingLink, other: ConcurrencyLink | FloatingLink
) -> tuple[OnFull, int | None]:
    if one.on_full != other.on_full and not NEWEST_WINS.isdisjoint((one.on_full, other.on_full)):
        raise Refused(f"on_full={one.on_full!r} and on_full={other.on_full!r} at one key, {shorten(one.key)}")
    on_full: OnFull = one.on_full if one.on_full == other.on_full else "discard"
    bounds = [link.max_waiting for link in (one, other) if link.max_waiting is not None]
    return on_full, min(bounds, default=None)


def _smaller(one: ConcurrencyLink, other: ConcurrencyLink) -> int | WorkersText:
    if one.limit == other.limit:
        return one.limit
    if one.limit == FOLLOWS or other.limit == FOLLOWS:
        raise Refused(f"a number and WORKERS at one key, {shorten(one.key)}, in one task; use one of them")
    return min(one.limit, other.limit)


def _check_newest(link: ConcurrencyLink | FloatingLink) -> None:
    if link.on_full in NEWEST_WINS and not link.max_waiting:
        raise Refused(f"on_full={link.on_full!r} lets at least one wait, but max_waiting is {link.max_waiting}")


def _one_group(one: _Link, other: _Link) -> tuple[str | None, float]:
    """Group and share of a body that stands for both: it can't wait in two groups of one key."""
    named = [link for link in (one, other) if link.group is not None]
    if len({link.group for link in named}) > 1:
        raise Refused(f"two groups, {shorten(one.group)} and {shorten(other.group)}, at one key, {shorten(one.key)}")
    return (named[0].group, min(link.share for link in named)) if named else (None, 1.0)


# Links are immutable and many calls share them, so equal ones are built and validated once. Callers pass
# exact str, int and float only: 1, True and 1.0 are one cache entry.


@lru_cache(maxsize=4096)
def concurrency_link(
    key: str,
    limit: int | WorkersText,
    weight: int,
    on_full: OnFull,
    max_waiting: int | None,
    group: str | None,
    share: float,
) -> ConcurrencyLink:
    return ConcurrencyLink(
        key=key, limit=limit, weight=weight, on_full=on_full, max_waiting=max_waiting, group=group, share=share
    )


@lru_cache(maxsize=4096)
def floating_link(
    key: str,
    default: int,
    every: float,
    refresh: str,
    weight: int,
    on_full: OnFull,
    max_waiting: int | None,
    group: str | None,
    share: float,
) -> FloatingLink:
    return FloatingLink(
        key=key,
        default=default,
        every=every,
        refresh=refresh,
        weight=weight,
        on_full=on_full,
        max_waiting=max_waiting,
        group=group,
        share=share,
    )


@lru_cache(maxsize=4096)
def debounce_link(key: str, quiet: float, at_most: float | None, keep: bool) -> DebounceLink:
    return DebounceLink(key=key, quiet=quiet, at_most=at_most, keep=keep)


@lru_cache(maxsize=4096)
def rate_link(key: str, rate: str, burst: int, cost: int, group: str | None, share: float) -> RateLink:
    return RateLink(key=key, rate=rate, burst=burst, cost=cost, group=group, share=share)
