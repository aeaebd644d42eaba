"""The limits a user declares: `Concurrency`, `FloatingConcurrency` and `RateLimit`.

Immutable values, checked when they are made as far as they can be without a task or a call; what is wrong is
a `DeclarationError` that quotes the limit and the value. Binding them to a task and to one call's arguments
is left to `chain`.

Wherever a callable may stand for a value it is called as the task's body is, `f(*args, **kwargs)`, without
`self` for a bound task, in the process that publishes (or in the worker, for a message without limits on it).
"""

from __future__ import annotations

import inspect
import operator
import re
import types
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, MISSING, dataclass, fields
from datetime import timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Any, ClassVar, Final, Literal, NamedTuple, TypeAlias

from celery_limits.errors import DeclarationError, Refused, shorten

from .template import Template, name_of, plain_number
from .workers_size import WORKERS, Workers

__all__ = ["Concurrency", "FloatingConcurrency", "Limit", "OnFull", "Rate", "RateLimit", "parse_rate"]

Key: TypeAlias = "str | Callable[..., Any]"
Size: TypeAlias = "int | Callable[..., Any]"
Share: TypeAlias = "float | Callable[..., Any]"
OnFull: TypeAlias = Literal["wait", "discard", "replace", "preempt"]
NEWEST_WINS: Final = frozenset({"replace", "preempt"})
"""What a newcomer does to others, beyond waiting or not."""

MAX_SIZE = 10**9
"""Largest limit, burst and max_waiting."""
MAX_WEIGHT = 10_000
"""Largest weight and cost."""
MAX_RATE = 100_000
"""Tokens a second: 10 µs apart. The store keeps times as doubles, which hold today's µs to a quarter."""
MAX_FILL_US = 100 * 365 * 86400 * 10**6
"""Longest `burst` times the interval: a century from now is still a whole number of µs in a double."""
MIN_EVERY, MAX_EVERY = 0.001, 365 * 86400.0
"""Seconds between refreshes of a floating limit."""
MAX_REFRESH = 200
"""Characters in the name of a refresh function."""
MIN_SHARE, MAX_SHARE = 0.001, 10_000.0
"""What a group can count for among the groups of a key."""

_UNIT_US = {"s": 10**6, "m": 60 * 10**6, "h": 3600 * 10**6, "d": 86_400 * 10**6, "w": 604_800 * 10**6}
_RATE = re.compile(r"(-?)([0-9]{1,15}|[0-9]{0,15}\.[0-9]{1,20})(?:/([smhdw]))?", re.ASCII)
_REFRESH = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*:[^\W\d]\w*(?:\.[^\W\d]\w*)*")


class Rate(NamedTuple):
    """A rate as it travels: `text` such as "100/m", and µs between tokens (None: nothing ever passes)."""

    text: str
    interval_us: float | None

    @property
    def interval(self) -> str:
        """As it is written in the store, by this side and by the scripts."""
        return f"{self.interval_us or 0:.17g}"


def parse_rate(value: object) -> Rate:
    """Read a rate as Celery writes them: "100/m", "10/s", "5/h", or a number per second; also per day and week."""
    if isinstance(value, str):
        return _parse_rate_text(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:
        raise _bad_rate(value)
    if value > MAX_RATE or value < 0:
        raise _out_of_range(value)
    return _parse_rate_text(plain_number(Decimal(repr(value))))


@lru_cache(maxsize=1024)
def _parse_rate_text(text: str) -> Rate:
    match = _RATE.fullmatch(text)
    if not match:
        raise _bad_rate(text)
    number, unit = Decimal(match[2]), match[3] or "s"
    if match[1] and number:
        raise _out_of_range(text)
    canonical = f"{plain_number(number)}/{unit}"
    if not number:
        return Rate(canonical, None)
    if number * 10**6 > MAX_RATE * _UNIT_US[unit]:
        raise _out_of_range(text)
    interval = float(_UNIT_US[unit] / number)
    if interval > MAX_FILL_US:
        raise Refused(f"rate {shorten(text)} is less than one in a century; use '0/h' for none at all")
    return Rate(canonical, interval)


def _bad_rate(value: object) -> Refused:
    examples = "'10/s', '100/m', '5/h', '1000/d', '5000/w' or a number per second"
    return Refused(f"rate {shorten(value)} can't be read: write {examples}")


def _out_of_range(value: object) -> Refused:
    return Refused(f"rate {shorten(value)} is out of range: from 0 (nothing passes) to {MAX_RATE} a second")


def whole(value: object, name: str, low: int, high: int) -> int:
    """`value` as an int between `low` and `high`; anything else, bools and floats too, is refused."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = int(operator.index(value))  # type: ignore[arg-type]  # int() makes an IntEnum a plain one
    except TypeError:
        raise Refused(f"{name} must be a whole number of {low} or more, not {shorten(value)}") from None
    if not low <= number <= high:
        raise Refused(f"{name} must be between {low} and {high}, not {shorten(number)}")
    return number


def check_share(value: object) -> float:
    """`value` as a float from MIN_SHARE to MAX_SHARE; anything else, bools and NaN too, is refused."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise Refused(f"share must be a positive number, not {shorten(value)}")
    if not MIN_SHARE <= value <= MAX_SHARE:  # NaN fails this too
        raise Refused(f"share must be between {MIN_SHARE} and {MAX_SHARE:.0f}, not {shorten(value)}")
    return float(value)


def check_weight(weight: int, limit: int) -> None:
    """Refuse what could never run. A limit of 0 is a wish to hold everything back, whatever its weight."""
    if 0 < limit < weight:
        raise Refused(f"weight {weight} is more than limit {limit}, so the task could never run")


def check_cost(cost: int, burst: int, interval_us: float | None) -> None:
    """Refuse what could never pass, and a burst that takes longer than a century to come back."""
    if cost > burst:
        raise Refused(f"cost {cost} is more than burst {burst}, so the task could never pass")
    if interval_us is not None and burst * interval_us > MAX_FILL_US:
        raise Refused(f"burst {burst} at this rate takes more than a century to come back; lower it")


class Limit:
    """What all limits have in common. Use one of its kinds."""

    kind: ClassVar[Literal["concurrency", "floating", "rate", "debounce"]]
    holds: ClassVar[bool]
    """Whether a task keeps what this limit gives it until it ends."""
    _shown_plain: ClassVar[tuple[str, ...]]
    key: Key
    fair_by: Key | None
    share: Share

    @property
    def node(self) -> Hashable:
        """What the key is among the keys of all tasks: the shape of its template, or the callable itself."""
        return self.key if callable(self.key) else Template.parse(self.key).shape

    def __repr__(self) -> str:
        parts = []
        for field in fields(self):  # type: ignore[arg-type]  # every kind is a dataclass
            value = getattr(self, field.name)
            if field.default is not MISSING and value == field.default:
                continue
            text = f"<{name_of(value)}>" if callable(value) else shorten(value)
            parts.append(text if field.name in self._shown_plain else f"{field.name}={text}")
        return f"{type(self).__name__}({', '.join(parts)})"

    def _set(self, **values: object) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @contextmanager
    def _declaring(self) -> Iterator[None]:
        try:
            yield
        except Refused as error:
            key = f"<{name_of(self.key)}>" if callable(self.key) else shorten(self.key)
            raise DeclarationError(f"{type(self).__name__}({key}, ...): {error}") from None


@dataclass(frozen=True, repr=False)
class Concurrency(Limit):
    """At most `limit` tasks at once that share a key.

    key: a template over the task's arguments, `"tenant:{tenant_id}"`, or a callable.
    limit: how much room there is; 0 means nothing runs. A number, a callable, or `WORKERS`: as many as the live workers
        that consume the task's queue have places. Tasks that share a key may state different limits; each is then
        admitted by its own.
    weight: how much of it this task takes. A number or a callable.
    on_full: "wait" for room, or "discard" the task, whose result is then revoked. "replace": the task takes the place
        of the one that has waited longest, once `max_waiting` wait. "preempt": it also ends the body that has run
        longest, and starts when that is gone. What is superseded ends as revoked; see docs/newest-wins.md.
    max_waiting: the most tasks that may wait at the key; one more is discarded. None: no bound; with "replace" and
        "preempt" it is 1.
    fair_by: names the group that this task belongs to at the key, as a template or a callable. Of the groups that
        wait, the one that holds the least of the key in proportion to its share is next. None: the group "".
    share: what the group counts for among the others. A number or a callable.
    """

    kind = "concurrency"
    holds = True
    _shown_plain = ("key", "limit")

    key: Key
    limit: Size | Workers
    _: KW_ONLY
    weight: Size = 1
    on_full: OnFull = "wait"
    max_waiting: int | None = None
    fair_by: Key | None = None
    share: Share = 1

    def __post_init__(self) -> None:
        with self._declaring():
            self._set(
                key=declared_key(self.key),
                limit=WORKERS if self.limit is WORKERS else _size(self.limit, "limit", 0, MAX_SIZE),
                weight=_size(self.weight, "weight", 1, MAX_WEIGHT),
                max_waiting=_max_waiting(self.max_waiting, self.on_full),
                **_fair(self.fair_by, self.share),
            )
            _check_line(self.on_full, self.max_waiting)
            if isinstance(self.limit, int) and isinstance(self.weight, int):
                check_weight(self.weight, self.limit)


@dataclass(frozen=True, repr=False)
class FloatingConcurrency(Limit):
    """A concurrency limit whose size is looked up from time to time.

    default: the size until the first refresh has answered; 0 means nothing runs before that.
    refresh: the function that returns the size, as "module:function" or the function itself. It runs in a
        worker, one at a time across all workers, with no arguments, and only while tasks wait.
    every: seconds (or a timedelta) after which the size is stale.
    key, weight, on_full, max_waiting, fair_by, share: as for `Concurrency`.
    """

    kind = "floating"
    holds = True
    _shown_plain = ("key",)

    key: Key
    _: KW_ONLY
    default: int
    refresh: str | Callable[[], int]
    every: float | timedelta
    weight: Size = 1
    on_full: OnFull = "wait"
    max_waiting: int | None = None
    fair_by: Key | None = None
    share: Share = 1

    def __post_init__(self) -> None:
        with self._declaring():
            self._set(
                key=declared_key(self.key),
                default=_default(self.default),
                refresh=_refresh(self.refresh),
                every=_every(self.every),
                weight=_size(self.weight, "weight", 1, MAX_WEIGHT),
                max_waiting=_max_waiting(self.max_waiting, self.on_full),
                **_fair(self.fair_by, self.share),
            )
            _check_line(self.on_full, self.max_waiting)


@dataclass(frozen=True, repr=False)
class RateLimit(Limit):
    """At most `rate` calls in a time, for all workers together.

    rate: "100/m", "10/s", "5/h", "0.5/s" as in Celery, "1000/d", "5000/w", a number per second, or a callable. Zero
        means that nothing passes.
    burst: how much may pass at once after a quiet time. None: room for exactly one call, so that calls are
        evenly spaced.
    cost: how many tokens one call takes. A number or a callable.
    fair_by, share: as for `Concurrency`; the groups that wait take turns, by what their calls cost in proportion to
        their shares.
    """

    kind = "rate"
    holds = False
    _shown_plain = ("key", "rate")

    key: Key
    rate: str | float | Callable[..., Any]
    _: KW_ONLY
    burst: int | None = None
    cost: Size = 1
    fair_by: Key | None = None
    share: Share = 1

    def __post_init__(self) -> None:
        with self._declaring():
            self._set(
                key=declared_key(self.key),
                rate=_plain_callable(self.rate) if callable(self.rate) else parse_rate(self.rate).text,
                burst=None if self.burst is None else whole(self.burst, "burst", 1, MAX_SIZE),
                cost=_size(self.cost, "cost", 1, MAX_WEIGHT),
                **_fair(self.fair_by, self.share),
            )
            cost = self.cost if isinstance(self.cost, int) else 1
            interval = None if callable(self.rate) else parse_rate(self.rate).interval_us
            check_cost(cost, cost if self.burst is None else self.burst, interval)


def declared_key(key: object, what: str = "the key") -> Key:
    if isinstance(key, str):
        return Template.parse(str.__str__(key)).text
    if callable(key):
        return _plain_callable(key)
    raise Refused(f"{what} must be a template ('tenant:{{tenant_id}}') or a callable, not {shorten(key)}")


def _fair(fair_by: object, share: object) -> dict[str, object]:
    if fair_by is None:
        if callable(share) or check_share(share) != 1:
            raise Refused("share needs fair_by, which names the group that it is the share of")
        return {"fair_by": None, "share": 1}
    try:
        group = declared_key(fair_by, "it")
    except Refused as error:
        raise Refused(f"fair_by: {error}") from None
    return {"fair_by": group, "share": _plain_callable(share) if callable(share) else check_share(share)}


def _size(value: object, name: str, low: int, high: int) -> Size:
    return _plain_callable(value) if callable(value) else whole(value, name, low, high)


def _default(value: object) -> int:
    if value is WORKERS:
        raise Refused("its size is looked up, and WORKERS is no number to begin with; use Concurrency(key, WORKERS)")
    return whole(value, "default", 0, MAX_SIZE)


def _plain_callable(function: Callable[..., Any]) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(function):
        raise Refused(f"{name_of(function)} is a coroutine function; use a plain one")
    if getattr(type(function), "__hash__", None) is None:
        raise Refused(f"{name_of(function)} can't be hashed, as limits must be; use a function")
    return function


def _max_waiting(value: object, on_full: object) -> int | None:
    if on_full in tuple(NEWEST_WINS):
        return 1 if value is None else whole(value, f"max_waiting with on_full={on_full!r}", 1, MAX_SIZE)
    return None if value is None else whole(value, "max_waiting", 0, MAX_SIZE)


def _check_line(on_full: object, max_waiting: int | None) -> None:
    if on_full not in ("wait", "discard", "replace", "preempt"):
        raise Refused(f"on_full must be 'wait', 'discard', 'replace' or 'preempt', not {shorten(on_full)}")
    if on_full == "discard" and max_waiting is not None:
        raise Refused(
            f"on_full='discard' never waits, so max_waiting={max_waiting} has no effect; leave one of them out"
        )


def _every(value: object) -> float:
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise Refused(f"every must be seconds or a timedelta, not {shorten(value)}")
    if not MIN_EVERY <= seconds <= MAX_EVERY:  # NaN fails this too
        raise Refused(f"every must be between {MIN_EVERY} seconds and a year, not {shorten(value)}")
    return float(seconds)


@lru_cache(maxsize=256)
def check_refresh(name: str) -> str:
    """Return `name` if it is "module:function"."""
    if len(name) > MAX_REFRESH or not _REFRESH.fullmatch(name):
        raise Refused(f"refresh must be 'module:function', not {shorten(name)}")
    return name


def _refresh(value: object) -> str:
    if isinstance(value, str):
        module, dot, function = value.rpartition(".")
        return check_refresh(f"{module}:{function}" if dot and ":" not in value else str.__str__(value))
    if not isinstance(value, (types.FunctionType, types.BuiltinFunctionType, types.MethodType)):
        raise Refused(f"refresh must be 'module:function' or a function, not {shorten(value)}")
    name = name_of(value)
    of_instance = isinstance(value, types.MethodType) and not isinstance(value.__self__, type)
    if "<" in name or of_instance:
        raise Refused(f"refresh must be a function that a worker can import by name, and {name} is not one")
    return check_refresh(name)
