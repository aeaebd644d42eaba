"""What the reads say in words: where a ticket is and why, and who holds a key."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .parties import Party
    from .status import TicketStory

__all__ = ["NAMED", "holder_text", "ticket_text"]

NAMED = 3
"""Holders that a sentence names."""

_MEANING = {
    "granted": "; it has its slots, and its message is on the way to a worker",
    "away": "; it holds no slot (its worker died or gave it back, or none came for it in time) and goes on when its "
    "message is delivered again. Had it begun without acks_late when its worker died, it is gone, as always in Celery",
    "ended": "; it will not run, and a worker is to report that to the result backend",
    "finished": "; it has run, and a second copy of its message, if one comes, is dropped",
}
"""What someone who reads the name of a state is to make of it, where the name does not tell."""


def holder_text(party: Party) -> str:
    where = f" on {party.worker}" if party.worker else f" ({party.state})"
    return f"{party.task_id}{where}{', whose lease has lapsed' if party.lapsed else ''}"


def ticket_text(story: TicketStory) -> str:
    if story.state == "delayed" and story.due is not None:
        due = datetime.fromtimestamp(story.due, timezone.utc).isoformat(timespec="seconds")
        return f"{story.ticket}: delayed, due at {due}, in {max(0.0, story.due - story.now):.1f} s"
    if story.state != "waiting":
        where = f" on {story.worker}" if story.worker else ""
        why = f" ({story.reason})" if story.reason else ""
        state = f"was {story.state}" if story.lapsed else story.state
        return f"{story.ticket}: {state}{where}{why}{_lapsed(story)}{_MEANING.get(story.state, '')}"
    place = str(story.fair) if story.fair else f"{story.place} of {story.waiting} in line"
    parts = [f"{story.ticket}: waits at {story.key!r}, {place}"]
    if story.paused:
        return f"{parts[0]}; the key is paused"
    if story.stopped and story.size is None:
        parts.append("the rate is 0, so that nothing passes until it is raised")
    elif story.due is not None:
        parts.append(f"it may pass in {max(0.0, story.due - story.now):.1f} s")
    if story.size is not None:
        parts.append(_room(story) + _held_by(story))
    if story.workers == 0:
        parts.append("no worker is alive")
    elif story.estimate is not None:
        parts.append(f"about {story.estimate:.1f} s to go")
    return "; ".join(parts)


def _lapsed(story: TicketStory) -> str:
    if not story.lapsed:
        return ""
    next_ = "a live worker reclaims its slots" if story.workers else "no worker is alive to reclaim its slots"
    return f", whose lease has lapsed: the worker counts as dead, and {next_}"


def _slots(count: int) -> str:
    return "no slot is" if not count else "1 slot is" if count == 1 else f"{count} slots are"


def _room(story: TicketStory) -> str:
    """How much of the key is taken, and of how much."""
    taken, size = story.running or 0, story.size or 0
    if story.stopped:
        return f"the limit is 0, so that nothing starts until it is raised; {_slots(taken)} taken"
    if taken <= size:
        return f"{taken} of {size} slots are taken"
    if story.resized or story.kind == "floating":
        why = f"the limit is now {size}, so that nothing starts until enough of them have ended"
    else:
        why = f"this task declares a limit of {size}, and others declare a larger one for the same key"
    return f"{_slots(taken)} taken and {why}; they are"


def _held_by(story: TicketStory) -> str:
    if not story.holders:
        return ""
    over = not story.stopped and (story.running or 0) > (story.size or 0)
    rest = max(story.holding, len(story.holders)) - len(story.holders[:NAMED])
    more = f" and {rest} other{'s' if rest > 1 else ''}" if rest else ""
    return f"{'' if over else ','} held by {', '.join(map(str, story.holders[:NAMED]))}{more}"
