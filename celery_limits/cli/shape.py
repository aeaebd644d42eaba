"""What the commands say, as data: the stable form behind `--json` (docs/cli.md), and numbers as people read them."""

from __future__ import annotations

from typing import Any

from celery_limits.chain import Declared
from celery_limits.limits import Limit
from celery_limits.store.audit import Finding
from celery_limits.store.reads import Explanation, Party, Status, TicketStory
from celery_limits.template import name_of

__all__ = ["chain_data", "duration", "explanation_data", "finding_data", "frequency", "key_data", "limit_text", "state"]


def _rounded(value: float | None, digits: int = 3) -> float | None:
    return None if value is None else round(value, digits)


def key_data(status: Status) -> dict[str, Any]:
    return {
        "key": status.key,
        "kind": status.kind,
        "limit": status.limit,
        "burst": status.burst,
        "running": status.running,
        "waiting": status.waiting,
        "oldest_wait": _rounded(status.oldest_wait),
        "rate_now": _rounded(status.rate_now, 6),
        "tokens": status.tokens,
        "resized": status.steered,
        "paused": status.paused,
    }


def party_data(party: Party, now: float) -> dict[str, Any]:
    return {
        "task": party.task,
        "task_id": party.task_id,
        "ticket": party.ticket,
        "state": party.state,
        "worker": party.worker or None,
        "since": party.since,
        "seconds": None if party.since is None else _rounded(max(0.0, now - party.since)),
    }


def shown_data(status: Status) -> dict[str, Any]:
    """A key with those who hold it and wait for it."""
    return {
        **key_data(status),
        "holders": [party_data(party, status.now) for party in status.holders],
        "waiters": [party_data(party, status.now) for party in status.waiters],
    }


def _story_data(story: TicketStory, task: str | None) -> dict[str, Any]:
    return {
        "ticket": story.ticket,
        "task": task,
        "state": story.state,
        "reason": story.reason or None,
        "worker": story.worker or None,
        "since": story.since,
        "seconds": None if story.since is None else _rounded(max(0.0, story.now - story.since)),
        "chain": list(story.chain),
        "held": list(story.held),
        "waits_at": story.key,
        "place": story.place,
        "waiting": story.waiting,
        "limit": story.size,
        "running": story.running,
        "paused": story.paused,
        "due_in": None if story.due is None else _rounded(max(0.0, story.due - story.now)),
        "estimate": _rounded(story.estimate),
        "holders": [party_data(party, story.now) for party in story.holders],
    }


def explanation_data(told: Explanation, names: dict[str, str]) -> dict[str, Any]:
    return {
        "task_id": told.task_id,
        "cancelled": told.cancelled,
        "tickets": [_story_data(story, names.get(story.ticket)) for story in told.tickets],
    }


def finding_data(finding: Finding) -> dict[str, Any]:
    return {"what": finding.what, "subject": finding.subject, "why": finding.why, "mended": finding.mended}


def _plain(value: Any) -> Any:
    return f"<{name_of(value)}>" if callable(value) else value


def limit_data(limit: Limit) -> dict[str, Any]:
    names = ("key", "limit", "default", "refresh", "every", "rate", "burst", "weight", "cost", "on_full", "max_waiting")
    return {"kind": limit.kind, **{name: _plain(getattr(limit, name)) for name in names if hasattr(limit, name)}}


def chain_data(declared: Declared) -> dict[str, Any]:
    return {"task": declared.task, "limits": [limit_data(limit) for limit in declared.limits]}


# -- for people -------------------------------------------------------------------------------------------------------


def duration(seconds: float | None) -> str:
    """The two largest units: "0.4s", "12s", "3m05s", "2h10m", "3d04h"."""
    if seconds is None:
        return "-"
    if seconds < 10:
        return f"{seconds:.1f}s"
    if seconds < 60:
        return f"{seconds:.0f}s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes}m{rest:02}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours < 48 else f"{hours // 24}d{hours % 24:02}h"


def frequency(per_second: float | None) -> str:
    """In the unit in which it is not a small fraction."""
    if per_second is None:
        return "-"
    for unit, span in (("s", 1), ("m", 60)):
        if per_second * span >= 1:
            return f"{per_second * span:.3g}/{unit}"
    return f"{per_second * 3600:.3g}/h"


def limit_text(status: Status) -> str:
    if status.limit is None:
        return "?"
    return f"{status.limit} burst {status.burst}" if status.burst else str(status.limit)


def state(status: Status) -> str:
    marks = [name for name, on in (("paused", status.paused), ("resized", status.steered)) if on]
    if status.kind == "rate" and status.tokens is not None and not status.paused:
        marks.append(f"{status.tokens} free")
    return ", ".join(marks)
