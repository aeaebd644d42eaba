"""What the gate knows of a request before it asks the store: its ticket, its chain, its queue and its rank.

A chain that can't be understood is a `LimitError` here, and never "no limits".
"""

from __future__ import annotations

from typing import Any, NamedTuple

from celery_limits.chain import Link
from celery_limits.errors import CorruptChain, shorten
from celery_limits.publish import links_of
from celery_limits.store.store import MAX_RANK
from celery_limits.transport.delivery import QUEUE_MARK
from celery_limits.trust import lowered
from celery_limits.wire import HEADER, Header, derived_ticket, read_header, task_id_of, ticket_in

__all__ = ["Plan", "plan_of", "queue_of", "rank_of"]


class Plan(NamedTuple):
    """What the gate knows of a request before it asks."""

    ticket: str
    header: Header
    links: tuple[Link, ...]
    as_sent: bool = True
    """Whether the message says the same; else what the store writes into it would contradict its own header."""


def plan_of(request: Any, *, trust: bool = True) -> Plan | None:
    """The chain of a request; None if it has no limits. Raises a `LimitError` for one that can't be understood.

    Without `trust` the header only lowers what the task declares here.
    """
    raw = request.request_dict.get(HEADER)
    header = None if raw is None else _own_header(request, raw)
    if header is not None and trust:
        return _plan(request, header, header.links)
    links = links_of(request.app, request.task.name, request.args, request.kwargs)
    if links is None:
        return None
    if header is not None:
        return _plan(request, header, lowered(links, header.links))
    retries = request.request_dict.get("retries")
    tag = request.message.properties.get("delivery_tag")  # kombu's own brokers make one at publish
    ticket = derived_ticket(request.id, request.message.body, retries, request.request_dict.get("eta"), tag)
    return _plan(request, Header(ticket=ticket, links=links), links)


def _own_header(request: Any, raw: object) -> Header:
    """A ticket is good for its own task alone: nobody may wait, run or release under another's name."""
    header = read_header(raw)
    if task_id_of(header.ticket) != request.id:
        raise CorruptChain(f"corrupt limits header: the ticket {shorten(header.ticket)} is not one of this task")
    return header


def _plan(request: Any, header: Header, links: tuple[Link, ...]) -> Plan:
    """Position, held keys and fence in the header are for people: what a ticket holds is in the store."""
    queue = queue_of(request)
    if "\t" in queue or "\n" in queue:
        raise CorruptChain(f"limits can't be kept for the queue {shorten(queue)}: its name has a tab or a newline")
    as_sent = links is header.links or links == header.links
    if not as_sent:
        header = Header.fresh(header.ticket, links)
    return Plan(ticket_in(header.ticket, queue), header, links, as_sent)


def queue_of(request: Any) -> str:
    """The one queue that the message came from (see `steps.QueueMarks`)."""
    return getattr(request.message, QUEUE_MARK, None) or request.delivery_info["routing_key"] or ""


def rank_of(request: Any, app: Any) -> int:
    """Celery's priority as a rank, lower first: on Redis 0 is the highest priority, on AMQP the lowest."""
    priority = request.delivery_info.get("priority")
    if priority is None:
        priority = app.conf.task_default_priority or 0
    rank = int(priority)
    if request.message.channel is not None and not hasattr(request.message.channel, "priority_steps"):
        rank = MAX_RANK - rank
    return min(max(rank, 0), MAX_RANK)
