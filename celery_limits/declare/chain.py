"""Chains: a task's limits bound to its signature, and the links they become for one call.

`declare` does every check that needs no call; `resolve_chain` turns one call into links that the store can
walk, or into a `ResolutionError`. How links travel is left to `message.header`, what they do to the store.

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
from typing import Any, TypeAlias, TypeGuard, cast

from pydantic import ValidationError

from celery_limits.errors import DeclarationError, Refused, ResolutionError, shorten

from .debounce import Debounce
from .limits import (
    MAX_SIZE,
    MAX_WEIGHT,
    NEWEST_WINS,
    Concurrency,
    FloatingConcurrency,
    Key,
    Limit,
    RateLimit,
    Size,
    check_share,
    parse_rate,
    whole,
)
from .links import (
    AnyLink,
    ConcurrencyLink,
    DebounceLink,
    FloatingLink,
    Link,
    RateLink,
    concurrency_link,
    debounce_link,
    floating_link,
    rate_link,
    stricter_line,
)
from .template import KeyOf, Template, call, text_of
from .workers_size import FOLLOWS, WORKERS, Workers, WorkersText

__all__ = [
    "MAX_LINKS",
    "AnyLink",
    "ConcurrencyLink",
    "DebounceLink",
    "Declared",
    "FloatingLink",
    "Link",
    "RateLink",
    "declare",
    "never_discarded",
    "never_superseded",
    "resolve_chain",
    "resolve_chunk",
    "stricter_line",
]

MAX_LINKS = 16
KINDS = (Concurrency, FloatingConcurrency, RateLimit, Debounce)


def never_discarded(links: tuple[Link, ...]) -> tuple[Link, ...]:
    """The same chain for a task that has begun, such as a retry: it waits where a newcomer would be
    discarded, and does not make the line longer for newcomers."""
    return tuple(_as_begun(link) for link in links)


def _as_begun(link: Link) -> Link:
    if isinstance(link, (ConcurrencyLink, FloatingLink)):
        return link.as_begun()
    return link.waiting() if isinstance(link, DebounceLink) else link


def never_superseded(links: tuple[Link, ...]) -> tuple[Link, ...]:
    """The same chain for a member of a canvas, whose end would be that of the others: it waits in line as ever."""
    return tuple(link.waiting() if _is_superseded(link) else link for link in links)


def _is_superseded(link: Link) -> TypeGuard[ConcurrencyLink | FloatingLink | DebounceLink]:
    return isinstance(link, DebounceLink) or getattr(link, "on_full", "wait") in NEWEST_WINS


Args: TypeAlias = Sequence[Any]
Kwargs: TypeAlias = Mapping[str, Any]
Resolver: TypeAlias = Callable[[Args, Kwargs], Link]
FairOf: TypeAlias = Callable[[Args, Kwargs], tuple[str | None, float]]


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
        odd = [limit for limit in limits if not isinstance(limit, KINDS)]
        if not odd:
            return
        problem = f"{shorten(odd[0])} is not a Concurrency, FloatingConcurrency, RateLimit or Debounce"
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
    ways = {getattr(one, "on_full", "wait"), getattr(other, "on_full", "wait")}
    if len(ways) > 1 and not NEWEST_WINS.isdisjoint(ways):
        return "they can meet on one key, where on_full must be the same"
    return None


def _resolver(task_name: str, limit: Limit, signature: inspect.Signature) -> Resolver:
    try:
        key, fair = _bind_key(limit.key, signature), _bind_fair(limit, signature)
    except Refused as error:
        raise DeclarationError(f"task {task_name!r}, {limit!r}: {error}") from None
    if isinstance(limit, Concurrency):
        return _concurrency_resolver(limit, key, fair)
    if isinstance(limit, FloatingConcurrency):
        return _floating_resolver(limit, key, fair)
    if isinstance(limit, Debounce):
        quiet, at_most = cast(float, limit.quiet), cast("float | None", limit.at_most)
        return lambda args, kwargs: debounce_link(key(args, kwargs), quiet, at_most, False)
    assert isinstance(limit, RateLimit)
    return _rate_resolver(limit, key, fair)


def _bind_key(key: Key, signature: inspect.Signature, name: str = "key") -> KeyOf:
    if not callable(key):
        return Template.parse(key).bind(signature)
    function = key
    return lambda args, kwargs: text_of(call(function, name, args, kwargs), f"the {name}")


def _bind_fair(limit: Limit, signature: inspect.Signature) -> FairOf:
    """Group and share of one call."""
    share = limit.share
    if limit.fair_by is None:
        return lambda _args, _kwargs: (None, 1.0)
    try:
        group = _bind_key(limit.fair_by, signature, "group")
    except Refused as error:
        raise Refused(f"fair_by: {error}") from None
    if not callable(share):
        number = float(share)
        return lambda args, kwargs: (group(args, kwargs), number)
    function = share
    return lambda args, kwargs: (group(args, kwargs), check_share(call(function, "share", args, kwargs)))


def _bind_size(value: Size, name: str, low: int, high: int) -> Callable[[Args, Kwargs], int]:
    if not callable(value):
        size = value
        return lambda _args, _kwargs: size
    function = value
    return lambda args, kwargs: whole(call(function, name, args, kwargs), name, low, high)


def _bind_limit(value: Size | Workers) -> Callable[[Args, Kwargs], int | WorkersText]:
    if not callable(value):
        size = FOLLOWS if value is WORKERS else value
        return lambda _args, _kwargs: size
    function = value

    def limit_of(args: Args, kwargs: Kwargs) -> int | WorkersText:
        size = call(function, "limit", args, kwargs)
        return FOLLOWS if size is WORKERS else whole(size, "limit", 0, MAX_SIZE)

    return limit_of


def _concurrency_resolver(declared: Concurrency, key: KeyOf, fair: FairOf) -> Resolver:
    limit = _bind_limit(declared.limit)
    weight = _bind_size(declared.weight, "weight", 1, MAX_WEIGHT)
    on_full, max_waiting = declared.on_full, declared.max_waiting
    return lambda args, kwargs: concurrency_link(
        key(args, kwargs), limit(args, kwargs), weight(args, kwargs), on_full, max_waiting, *fair(args, kwargs)
    )


def _floating_resolver(declared: FloatingConcurrency, key: KeyOf, fair: FairOf) -> Resolver:
    default = declared.default
    seconds = cast(float, declared.every)  # FloatingConcurrency has made it one, and a name of `refresh`
    function = cast(str, declared.refresh)
    weight = _bind_size(declared.weight, "weight", 1, MAX_WEIGHT)
    on_full, max_waiting = declared.on_full, declared.max_waiting
    return lambda args, kwargs: floating_link(
        key(args, kwargs), default, seconds, function, weight(args, kwargs), on_full, max_waiting, *fair(args, kwargs)
    )


def _rate_resolver(declared: RateLimit, key: KeyOf, fair: FairOf) -> Resolver:
    rate, burst = declared.rate, declared.burst
    cost_of = _bind_size(declared.cost, "cost", 1, MAX_WEIGHT)

    def resolve(args: Args, kwargs: Kwargs) -> RateLink:
        text = parse_rate(call(rate, "rate", args, kwargs)).text if callable(rate) else rate
        cost = cost_of(args, kwargs)
        return rate_link(key(args, kwargs), text, cost if burst is None else burst, cost, *fair(args, kwargs))

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

    Links of one declared limit stand together, in key order, so that two chunks never wait for each other. Calls of
    different groups at one key can't be in one body.
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
        one = rate_link(one.key, one.rate, one.burst, sum(link.cost for link in links), one.group, one.share)
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
