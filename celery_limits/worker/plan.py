"""What the gate knows of a request before it asks the store: its ticket and its chain.

A chain that can't be understood is a `LimitError` here, and never "no limits".
"""

from __future__ import annotations

from typing import Any, NamedTuple

from celery_limits.app.stamp import links_of
from celery_limits.declare.chain import Link, never_discarded, never_superseded
from celery_limits.declare.trust import lowered
from celery_limits.errors import CorruptChain, shorten
from celery_limits.message.call_limits import BEGUN_HEADER, CALL_HEADER, read_begun, read_call
from celery_limits.message.canvas import is_canvas_member
from celery_limits.message.header import HEADER, Header, derived_ticket, read_header, task_id_of, ticket_in

from .untrusted import arguments_of, body_of, check, embed_of, queue_of

__all__ = ["Plan", "plan_of"]


class Plan(NamedTuple):
    """What the gate knows of a request before it asks."""

    ticket: str
    header: Header
    links: tuple[Link, ...]
    as_sent: bool = True
    """Whether the message says the same; else what the store writes into it would contradict its own header."""
    begun: str = ""
    """What claims that the task has begun before, for the store to check; needed only where headers are not trusted."""


def plan_of(request: Any, *, trust: bool = True) -> Plan | None:
    """The chain of a request; None if it has no limits. Raises a `LimitError` for one that can't be understood.

    Without `trust` the header only lowers what the task declares here.
    """
    check(request)
    raw = request.request_dict.get(HEADER)
    if (call := request.request_dict.get(CALL_HEADER)) is not None:
        read_call(call, request.id)  # a corrupt one would fail the retry, when the body has already run
    header = None if raw is None else _own_header(request, raw)
    if header is not None and trust:
        return _plan(request, header, header.links)
    links = links_of(request.app, request.task.name, *arguments_of(request))
    if links is None:
        return None
    if is_canvas_member(request.request_dict, embed_of(request)):
        links = never_superseded(links)
    if header is not None:
        plan = _plan(request, header, lowered(links, header.links))
        return plan._replace(begun=read_begun(request.request_dict.get(BEGUN_HEADER)))
    retries = request.request_dict.get("retries")
    if retries and trust:  # else anybody could claim to have begun
        links = never_discarded(links)
    tag = request.message.properties.get("delivery_tag")  # kombu's own brokers make one at publish
    ticket = derived_ticket(request.id, body_of(request), retries, request.request_dict.get("eta"), tag)
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
        header = Header.fresh(header.ticket, links, header.arrival)
    return Plan(ticket_in(header.ticket, queue), header, links, as_sent)
