"""Chains: a task's limits bound to its signature, and the links they become for one call.

`declare` does every check that needs no call; `resolve_chain` turns one call into links that the store can
walk, or into a `ResolutionError`. How links travel is left to `wire`, what they do to the store.

Templates that differ only in the names of their fields ("account:{src}", "account:{dst}") have one shape, so
they can yield the same keys. In one chain the links of one shape are walked in key order, among the places
that they were declared at, so that two transfers in opposite directions never wait for each other; where
two of them yield one key (a transfer to oneself) they become one link, the stricter of both in each respect.
Any other key that occurs twice in a chain is an error: the task would wait for itself.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from math import inf
from typing import Annotated, Any, Literal, TypeAlias, cast

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from .errors import DeclarationError, Refused, ResolutionError, shorten
from .limits import (
    MAX_EVERY,
    MAX_SIZE,
    MAX_WEIGHT,
    MIN_EVERY,
    Concurrency,
    FloatingConcurrency,
    Key,
    Limit,
    OnFull,
    RateLimit,
    Size,
    check_cost,
    check_refresh,
    check_weight,
    parse_rate,
    whole,
)
from .template import KeyOf, Template, call, check_key, text_of

__all__ = [
    "MAX_LINKS",
    "ConcurrencyLink",
    "Declared",
    "FloatingLink",
    "Link",
    "RateLink",
    "declare",
    "resolve_chain",
    "resolve_chunk",
    "stricter_line",
]

MAX_LINKS = 16


_Key = Annotated[str, AfterValidator(check_key)]
_Count = Annotated[int, Field(ge=0, le=MAX_SIZE)]
_Weight = Annotated[int, Field(ge=1, le=MAX_WEIGHT)]


class _Link(BaseModel):
    """One limit of one message, resolved to plain values."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    kind: str
    key: _Key

    @cached_property
    def wire(self) -> Mapping[str, Any]:
        """JSON-able, fields at their defaults left out. One dict for all who ask: copy it to change it."""
        return {"kind": self.kind, **self.model_dump(exclude_defaults=True)}


class ConcurrencyLink(_Link):
    kind: Literal["concurrency"] = "concurrency"
    limit: _Count
    weight: _Weight = 1
    on_full: OnFull = "wait"
    max_waiting: _Count | None = None

    @model_validator(mode="after")
    def _can_run(self) -> ConcurrencyLink:
        check_weight(self.weight, self.limit)
        return self

    def stricter(self, other: ConcurrencyLink) -> ConcurrencyLink:
        """One link as strict as both; they have one key."""
        limit, weight = min(self.limit, other.limit), max(self.weight, other.weight)
        return _concurrency_link(self.key, limit, weight, *stricter_line(self, other))


class FloatingLink(_Link):
    """`refresh` is here to be shown and compared. What runs is what the worker's own task declares."""

    kind: Literal["floating"] = "floating"
    default: _Count
    every: Annotated[float, Field(ge=MIN_EVERY, le=MAX_EVERY, allow_inf_nan=False)]
    refresh: Annotated[str, AfterValidator(check_refresh)]
    weight: _Weight = 1
    on_full: OnFull = "wait"
    max_waiting: _Count | None = None

    def stricter(self, other: FloatingLink) -> FloatingLink:
        """One link as strict as both; they have one key and one refresh function."""
        default, every = min(self.default, other.default), min(self.every, other.every)
        weight = max(self.weight, other.weight)
        return _floating_link(self.key, default, every, self.refresh, weight, *stricter_line(self, other))


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
        return _rate_link(self.key, slower.rate, max(cost, min(self.burst, other.burst)), cost)


Link: TypeAlias = ConcurrencyLink | FloatingLink | RateLink
AnyLink = Annotated[Link, Field(discriminator="kind")]


def stricter_line(
    one: ConcurrencyLink | FloatingLink, other: ConcurrencyLink | FloatingLink
) -> tuple[OnFull, int | None]:
    on_full: OnFull = "wait" if one.on_full == other.on_full == "wait" else "discard"
    bounds = [link.max_waiting for link in (one, other) if link.max_waiting is not None]
    return on_full, min(bounds, default=None)


# Links are immutable and many calls share them, so equal ones are built and validated once. Callers pass
# exact str, int and float only: 1, True and 1.0 are one cache entry.


@lru_cache(maxsize=4096)
def _concurrency_link(key: str, limit: int, weight: int, on_full: OnFull, max_waiting: int | None) -> ConcurrencyLink:
    return ConcurrencyLink(key=key, limit=limit, weight=weight, on_full=on_full, max_waiting=max_waiting)


@lru_cache(maxsize=4096)
def _floating_link(
    key: str, default: int, every: float, refresh: str, weight: int, on_full: OnFull, max_waiting: int | None
) -> FloatingLink:
    return FloatingLink(
        key=key,
        default=default,
        every=every,
        refresh=refresh,
        weight=weight,
        on_full=on_full,
        max_waiting=max_waiting,
    )


@lru_cache(maxsize=4096)
def _rate_link(key: str, rate: str, burst: int, cost: int) -> RateLink:
    return RateLink(key=key, rate=rate, burst=burst, cost=cost)


Args: TypeAlias = Sequence[Any]
Kwargs: TypeAlias = Mapping[str, Any]
Resolver: TypeAlias = Callable[[Args, Kwargs], Link]


@dataclass(frozen=True, eq=False)
class Declared:
    """A task's limits, checked and bound to its signature. Made by `declare`."""

    task: str
    limits: tuple[Limit, ...]
    resolvers: tuple[Resolver, ...] = field(repr=False)
    shared: tuple[tuple[int, ...], ...] = field(repr=False)
    """Positions of limits that have one shape, wherever there are several."""


def declare(task_name: str, limits: Sequence[Limit], signature: inspect.Signature) -> Declared:
    """Bind `limits` to a task's signature (without `self` for a bound task), or raise `DeclarationError`."""
    _check_list(task_name, limits)
    resolvers = tuple(_resolver(task_name, limit, signature) for limit in limits)
    return Declared(task_name, tuple(limits), resolvers, _shared_positions(task_name, limits))


def _check_list(task_name: str, limits: object) -> None:
    if not isinstance(limits, (list, tuple)):
        problem = f"limits must be a list of limits, not {shorten(limits)}"
    elif not limits:
        problem = "the list of limits is empty; leave `limits` out for a task that has none"
    elif len(limits) > MAX_LINKS:
        problem = f"{len(limits)} limits; at most {MAX_LINKS} are allowed"
    else:
        odd = [limit for limit in limits if not isinstance(limit, (Concurrency, FloatingConcurrency, RateLimit))]
        if not odd:
            return
        problem = f"{shorten(odd[0])} is not a Concurrency, FloatingConcurrency or RateLimit"
    raise DeclarationError(f"task {task_name!r}: {problem}")


def _shared_positions(task_name: str, limits: Sequence[Limit]) -> tuple[tuple[int, ...], ...]:
    positions: dict[Hashable, list[int]] = {}
    for position, limit in enumerate(limits):
        for earlier in positions.setdefault(limit.node, []):
            problem = _conflict(limits[earlier], limit)
            if problem:
                pair = f"{limits[earlier]!r} and {limit!r}"
                raise DeclarationError(f"task {task_name!r}, {pair}: {problem}")
        positions[limit.node].append(position)
    return tuple(tuple(group) for group in positions.values() if len(group) > 1)


def _conflict(one: Limit, other: Limit) -> str | None:
    """Why two limits of one shape can't be in one chain: they may meet on one key, which is one counter."""
    if one.kind != other.kind:
        return "one key can't have two kinds of limit; put another prefix before one of them"
    if one.key == other.key:
        return "one key twice, so the task would wait for itself; keep one of them"
    if getattr(one, "refresh", None) != getattr(other, "refresh", None):
        return "they can meet on one key, which can't have two refresh functions"
    return None


def _resolver(task_name: str, limit: Limit, signature: inspect.Signature) -> Resolver:
    try:
        key = _bind_key(limit.key, signature)
    except Refused as error:
        raise DeclarationError(f"task {task_name!r}, {limit!r}: {error}") from None
    if isinstance(limit, Concurrency):
        return _concurrency_resolver(limit, key)
    if isinstance(limit, FloatingConcurrency):
        return _floating_resolver(limit, key)
    assert isinstance(limit, RateLimit)
    return _rate_resolver(limit, key)


def _bind_key(key: Key, signature: inspect.Signature) -> KeyOf:
    if not callable(key):
        return Template.parse(key).bind(signature)
    function = key
    return lambda args, kwargs: text_of(call(function, "key", args, kwargs), "the key")


def _bind_size(value: Size, name: str, low: int, high: int) -> Callable[[Args, Kwargs], int]:
    if not callable(value):
        size = value
        return lambda _args, _kwargs: size
    function = value
    return lambda args, kwargs: whole(call(function, name, args, kwargs), name, low, high)


def _concurrency_resolver(declared: Concurrency, key: KeyOf) -> Resolver:
    limit = _bind_size(declared.limit, "limit", 0, MAX_SIZE)
    weight = _bind_size(declared.weight, "weight", 1, MAX_WEIGHT)
    on_full, max_waiting = declared.on_full, declared.max_waiting
    return lambda args, kwargs: _concurrency_link(
        key(args, kwargs), limit(args, kwargs), weight(args, kwargs), on_full, max_waiting
    )


def _floating_resolver(declared: FloatingConcurrency, key: KeyOf) -> Resolver:
    default = declared.default
    seconds = cast(float, declared.every)  # FloatingConcurrency has made it one, and a name of `refresh`
    function = cast(str, declared.refresh)
    weight = _bind_size(declared.weight, "weight", 1, MAX_WEIGHT)
    on_full, max_waiting = declared.on_full, declared.max_waiting
    return lambda args, kwargs: _floating_link(
        key(args, kwargs), default, seconds, function, weight(args, kwargs), on_full, max_waiting
    )


def _rate_resolver(declared: RateLimit, key: KeyOf) -> Resolver:
    rate, burst = declared.rate, declared.burst
    cost_of = _bind_size(declared.cost, "cost", 1, MAX_WEIGHT)

    def resolve(args: Args, kwargs: Kwargs) -> RateLink:
        text = parse_rate(call(rate, "rate", args, kwargs)).text if callable(rate) else rate
        cost = cost_of(args, kwargs)
        return _rate_link(key(args, kwargs), text, cost if burst is None else burst, cost)

    return resolve


def resolve_chain(declared: Declared, args: Args | None, kwargs: Kwargs | None) -> tuple[Link, ...]:
    """The links of one call, in the order they are walked, or a `ResolutionError`."""
    args = () if args is None else args
    kwargs = {} if kwargs is None else kwargs
    links: list[Link] = []
    try:
        for resolve in declared.resolvers:
            links.append(resolve(args, kwargs))  # noqa: PERF401  (how many there are tells which one failed)
    except (Refused, ValidationError) as error:
        limit = declared.limits[len(links)]
        raise ResolutionError(f"task {declared.task!r}, {limit!r}: {reason_of(error)}") from error.__cause__
    try:
        if declared.shared:
            links = _in_key_order(links, declared.shared)
        check_keys_differ(links)
    except (Refused, ValidationError) as error:
        raise ResolutionError(f"task {declared.task!r}: {reason_of(error)}") from None
    return tuple(links)


def resolve_chunk(declared: Declared, calls: Iterable[tuple[Args, Kwargs]]) -> tuple[Link, ...]:
    """The links of one body that makes several calls, one after the other: what each would hold, all that they cost.

    Links of one declared limit stand together, in key order, so that two chunks never wait for each other.
    """
    placed = [at for args, kwargs in calls for at in enumerate(resolve_chain(declared, args, kwargs))]
    same: dict[str, list[Link]] = {}
    for _, link in sorted(placed, key=lambda at: (at[0], at[1].key)):
        same.setdefault(link.key, []).append(link)
    try:
        if len(same) > MAX_LINKS:
            raise Refused(f"{len(same)} different keys, and at most {MAX_LINKS} are allowed")
        return tuple(_together(links) for links in same.values())
    except (Refused, ValidationError) as error:
        raise ResolutionError(f"task {declared.task!r}: {reason_of(error)}; use smaller chunks") from None


def _together(links: Sequence[Any]) -> Link:
    """One link for several calls that share a key."""
    one = links[0]
    for link in links[1:]:
        one = one.stricter(link)
    if isinstance(one, RateLink) and len(links) > 1:
        one = _rate_link(one.key, one.rate, one.burst, sum(link.cost for link in links))
    link_of_all: Link = one
    return link_of_all


def _in_key_order(links: list[Link], shared: tuple[tuple[int, ...], ...]) -> list[Link]:
    placed: list[Link | None] = list(links)
    for positions in shared:
        merged: dict[str, Any] = {}
        for position in positions:
            link: Any = links[position]
            placed[position] = None
            merged[link.key] = merged[link.key].stricter(link) if link.key in merged else link
        for position, key in zip(positions, sorted(merged), strict=False):
            placed[position] = merged[key]
    return [link for link in placed if link is not None]


def check_keys_differ(links: Sequence[Link]) -> None:
    """Refuse a chain that takes one key twice, whatever the kinds: it would wait for itself."""
    keys = {link.key for link in links}
    if len(keys) != len(links):
        all_keys = [link.key for link in links]
        twice = next(key for key in all_keys if all_keys.count(key) > 1)
        raise Refused(f"one key twice in a chain, {shorten(twice)}, so the task would wait for itself")


def reason_of(error: Refused | ValidationError) -> str:
    """What is wrong, in one line, with the offending part cut to a readable length."""
    if isinstance(error, Refused):
        return str(error)
    first = error.errors(include_url=False)[0]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, Refused):
        return str(cause)
    if first["type"] == "union_tag_invalid":
        return f"unknown kind {shorten(first['ctx']['tag'])}"
    return f"{first['msg']}, not {shorten(first['input'])}"
