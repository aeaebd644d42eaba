"""What a header may say when its producer is not trusted (`limits_trust_headers = False`).

The worker's own declaration, resolved for this call, is the chain: its keys, their order, kinds, weights, costs, rates,
groups, shares and refresh functions. The header can only make the task itself accept less: a smaller limit, a shorter
line. What would be at the cost of others is left out: a foreign key or a larger weight takes their room, a larger share
their turn, and a slower rate pushes back the next token for everyone who shares it.
"""

from __future__ import annotations

from .chain import ConcurrencyLink, FloatingLink, Link, stricter_line
from .limits import NEWEST_WINS, OnFull
from .workers_size import FOLLOWS

__all__ = ["lowered"]


def lowered(own: tuple[Link, ...], claimed: tuple[Link, ...]) -> tuple[Link, ...]:
    """The chain that the worker declares, as far lowered as the header asks for."""
    by_key = {link.key: link for link in claimed}
    return tuple(_lower(link, by_key.get(link.key)) for link in own)


def _lower(own: Link, claimed: Link | None) -> Link:
    if isinstance(own, ConcurrencyLink) and isinstance(claimed, ConcurrencyLink):
        on_full, max_waiting = _line(own, claimed)
        limit = own.limit
        if limit != FOLLOWS and claimed.limit != FOLLOWS:  # a size that is no number can't be lowered
            limit = _size(limit, claimed.limit, own.weight)
        return ConcurrencyLink(
            key=own.key,
            limit=limit,
            weight=own.weight,
            on_full=on_full,
            max_waiting=max_waiting,
            group=own.group,
            share=own.share,
        )
    if isinstance(own, FloatingLink) and isinstance(claimed, FloatingLink):
        on_full, max_waiting = _line(own, claimed)
        default = _size(own.default, claimed.default, own.weight)
        return FloatingLink(
            key=own.key,
            default=default,
            every=own.every,
            refresh=own.refresh,
            weight=own.weight,
            on_full=on_full,
            max_waiting=max_waiting,
            group=own.group,
            share=own.share,
        )
    return own


def _line(own: ConcurrencyLink | FloatingLink, claimed: ConcurrencyLink | FloatingLink) -> tuple[OnFull, int | None]:
    """Where the newest wins, or is said to, what the worker declares is in force: the others pay for it."""
    if NEWEST_WINS.isdisjoint((own.on_full, claimed.on_full)):
        return stricter_line(own, claimed)
    return own.on_full, own.max_waiting


def _size(own: int, claimed: int, weight: int) -> int:
    """Never so small that the task could never run: it would stand in the line for ever, and fill it."""
    return min(own, max(claimed, weight))
