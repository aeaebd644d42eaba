"""A ticket's record and links, as the scripts lay them out: see lua/include/record.lua and lua/include/decode.lua."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from celery_limits.declare.chain import ConcurrencyLink, DebounceLink, FloatingLink, Link, RateLink
from celery_limits.declare.limits import NEWEST_WINS, parse_rate
from celery_limits.declare.workers_size import FOLLOWS

from .policy import microseconds

__all__ = ["WIDTH", "ChainFields", "chain_fields", "link_fields", "record_rest"]


BEGUN = "+"
WIDTH = 5
"""Fields of a link."""


_WINS = {"replace": "~", "preempt": "!"}


def _longest_line(link: ConcurrencyLink | FloatingLink) -> str:
    """One number says both: not to wait is to accept a line of length 0. A task that has begun accepts any."""
    if link.begun:
        return BEGUN
    if link.on_full == "discard":
        return "0"
    return "" if link.max_waiting is None else f"{link.max_waiting}{_WINS.get(link.on_full, '')}"


def link_fields(link: Link, queue: str = "") -> tuple[str, ...]:
    """A link of a message in this queue as include/record.lua lays it out: kind, key, size, weight, extra."""
    fair = "" if link.group is None else f"|{link.share:.15g}|{link.group}"
    if isinstance(link, ConcurrencyLink) and link.limit == FOLLOWS:
        # A class of waiters is named by its size, and the colon ends that name.
        size = queue.replace("%", "%25").replace(":", "%3A")
        return "w", link.key, size, str(link.weight), _longest_line(link) + fair
    if isinstance(link, ConcurrencyLink):
        return "c", link.key, str(link.limit), str(link.weight), _longest_line(link) + fair
    if isinstance(link, RateLink):
        return "r", link.key, parse_rate(link.rate).interval, str(link.cost), f"{link.burst}{fair}"
    if isinstance(link, DebounceLink):
        at_most = "" if link.at_most is None else str(microseconds(link.at_most))
        return "d", link.key, str(microseconds(link.quiet)), "1", at_most + ("k" if link.keep else "")
    extra = f"{_longest_line(link) or '-'} {microseconds(link.every)} {link.refresh}{fair}"
    return "f", link.key, str(link.default), str(link.weight), extra


class ChainFields(NamedTuple):
    """A chain as it stands in a record, as it is passed to be walked, and what `admit` is told of it in its flags."""

    record: str
    links: tuple[str, ...]
    flags: str


@lru_cache(maxsize=4096)
def chain_fields(links: tuple[Link, ...], queue: str = "") -> ChainFields:
    """`queue`: the one that the message is consumed from, for sizes that follow its workers."""
    fields = tuple(field for link in links for field in link_fields(link, queue))
    special = any(link.group is not None or getattr(link, "limit", None) == FOLLOWS for link in links)
    wins = any(isinstance(link, DebounceLink) or getattr(link, "on_full", "") in NEWEST_WINS for link in links)
    flags = ("g" if special else "") + ("w" if wins else "")
    return ChainFields("\t\n\t" + "\t".join(fields) + "\t", fields, flags)


def record_rest(
    chain: str, *, rank: int, delivery: str, queue: str, until: str, since: int, late: bool, cut: int | None
) -> str:
    """What a ticket's record says beside its state, as the scripts take it."""
    flags = f"{'1' if late else ''}\t{'' if cut is None else cut}"
    return f"{rank}\t{delivery}\t{queue}\t{until}\t{since}\t{flags}{chain}"
