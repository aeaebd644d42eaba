"""What the commands say, as data: the stable form behind `--json` (docs/cli.md), and numbers as people read them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from celery_limits.app.summary import duration, health, held_off, set_by
from celery_limits.declare.chain import Declared
from celery_limits.declare.limits import Limit
from celery_limits.declare.template import name_of
from celery_limits.declare.workers_size import WORKERS
from celery_limits.store.audit import Finding
from celery_limits.store.changes import Change
from celery_limits.store.status import Explanation, Group, Party, Setting, Status, TicketStory
from celery_limits.store.steering import StoppedQueue

from .result import LookedUp

__all__ = [
    "chain_data",
    "change_data",
    "duration",
    "explanation_data",
    "finding_data",
    "frequency",
    "held_text",
    "key_data",
    "limit_text",
    "shown_data",
    "state",
    "stopped_data",
    "use_text",
]


def _rounded(value: float | None, digits: int = 3) -> float | None:
    return None if value is None else round(value, digits)


def key_data(status: Status) -> dict[str, Any]:
    return {
        "key": status.key,
        "kind": status.kind,
        "limit": status.limit,
        "follows": "workers" if status.follows_workers and not status.steered else None,
        "burst": status.burst,
        "sizes": list(status.sizes),
        "running": status.running,
        "holding": status.holding,
        "waiting": status.waiting,
        "oldest_wait": _rounded(status.oldest_wait),
        "rate_now": _rounded(status.rate_now, 6),
        "tokens": status.tokens,
        "resized": status.steered,
        "paused": status.paused,
        "held": status.held,
        "bodies": status.bodies,
        "health": health(status),
        "set_by": set_by(status),
        "held_off": _rounded(held_off(status)),
        "forced": status.forced,
        "pause": _setting_data(status.paused_by),
        "resize": _setting_data(status.resized_by),
    }


def _setting_data(setting: Setting | None) -> dict[str, Any] | None:
    return None if setting is None else {"by": setting.by, "reason": setting.reason, "until": setting.until}


def change_data(change: Change) -> dict[str, Any]:
    return asdict(change)


def stopped_data(queue: StoppedQueue) -> dict[str, Any]:
    return asdict(queue)


def party_data(party: Party, now: float) -> dict[str, Any]:
    return {
        "task": party.task,
        "task_id": party.task_id,
        "ticket": party.ticket,
        "state": party.state,
        "worker": party.worker or None,
        "worker_alive": not party.lapsed if party.worker else None,
        "weight": party.weight,
        "since": party.since,
        "seconds": None if party.since is None else _rounded(max(0.0, now - party.since)),
    }


def group_data(group: Group, now: float) -> dict[str, Any]:
    return {
        "group": group.group,
        "held": group.held,
        "share": group.share,
        "waiting": group.waiting,
        "oldest_wait": None if group.since is None else _rounded(max(0.0, now - group.since)),
    }


def grouped_data(status: Status) -> dict[str, Any]:
    """A key with its groups."""
    return {**key_data(status), "groups": [group_data(group, status.now) for group in status.groups]}


def shown_data(status: Status) -> dict[str, Any]:
    """A key with those who hold it and wait for it."""
    return {
        **grouped_data(status),
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
        "worker_alive": not story.lapsed if story.worker else None,
        "since": story.since,
        "seconds": None if story.since is None else _rounded(max(0.0, story.now - story.since)),
        "chain": list(story.chain),
        "held": list(story.held),
        "waits_at": story.key,
        "place": story.place,
        "waiting": story.waiting,
        "limit": story.size,
        "running": story.running,
        "holding": story.holding if story.key is not None else None,
        "paused": story.paused,
        "due_in": None if story.due is None else _rounded(max(0.0, story.due - story.now)),
        "estimate": _rounded(story.estimate),
        "holders": [party_data(party, story.now) for party in story.holders],
        "fair": None if story.fair is None else asdict(story.fair),
        "spent": [{"key": story.chain[link], "seconds": _rounded(seconds)} for link, seconds in story.spent],
    }


def explanation_data(told: Explanation, names: dict[str, str], result: LookedUp | None = None) -> dict[str, Any]:
    return {
        "task_id": told.task_id,
        "cancelled": told.cancelled,
        "tickets": [_story_data(story, names.get(story.ticket)) for story in told.tickets],
        "result": None if result is None else result.state,
        "superseded_by": told.superseded_by,
        "successor": None if told.successor is None else _successor_data(told, names),
    }


def _successor_data(told: Explanation, names: dict[str, str]) -> dict[str, Any]:
    tickets = [_story_data(story, names.get(story.ticket)) for story in told.successors]
    return {"task_id": told.successor, "steps": told.steps, "tickets": tickets}


def finding_data(finding: Finding) -> dict[str, Any]:
    return {
        "code": finding.code,
        "subject": finding.subject,
        "message": finding.message,
        "repaired": finding.repaired,
    }


def _plain(value: Any) -> Any:
    if value is WORKERS:
        return value.value
    return f"<{name_of(value)}>" if callable(value) else value


def limit_data(limit: Limit) -> dict[str, Any]:
    sizes = ("key", "limit", "default", "refresh", "every", "rate", "burst", "weight", "cost", "quiet", "at_most")
    names = (*sizes, "on_full", "max_waiting", *(("fair_by", "share") if limit.fair_by is not None else ()))
    return {"kind": limit.kind, **{name: _plain(getattr(limit, name)) for name in names if hasattr(limit, name)}}


def chain_data(declared: Declared) -> dict[str, Any]:
    return {"task": declared.task, "limits": [limit_data(limit) for limit in declared.limits]}


# -- for people -------------------------------------------------------------------------------------------------------


def frequency(per_second: float | None) -> str:
    """In the unit in which it is not a small fraction."""
    if per_second is None:
        return "-"
    for unit, span in (("s", 1), ("m", 60), ("h", 3600)):
        if per_second * span >= 1:
            return f"{per_second * span:.3g}/{unit}"
    return f"{per_second * 86_400:.3g}/d"


def differs(status: Status) -> bool:
    """Whether tasks declare different sizes for the key, and no other size is in force."""
    return len(status.sizes) > 1 and not status.steered


def limit_text(status: Status) -> str:
    if status.follows_workers and not status.steered:
        return "workers" if status.limit is None else f"workers ({status.limit})"
    if status.limit is None:
        return "?"
    if differs(status):
        return f"{status.sizes[0]} to {status.sizes[-1]}"
    return f"{status.limit} burst {status.burst}" if status.burst else str(status.limit)


def held_text(status: Status) -> str:
    if not status.held:
        return "no slot held"
    slots = f"{status.held} slot{'s' if status.held > 1 else ''} held"
    by = "" if status.holding == status.held else f" by {status.holding} task{'s' if status.holding > 1 else ''}"
    return slots + by


def use_text(status: Status) -> str:
    """How much of the key is held, and how many wait."""
    held = [] if status.kind == "rate" else [held_text(status)]
    return ", ".join([*held, f"{status.waiting} waiting"])


def state(status: Status) -> str:
    """Marks beside the health of a key: until when it is steered, what a rate could let pass now, what people let
    through."""
    marks = []
    for name, on, setting in (
        ("paused", status.paused, status.paused_by), ("resized", status.steered, status.resized_by)
    ):  # fmt: skip
        if on:
            left = (
                ""
                if setting is None or setting.until is None
                else f" for {duration(max(0.0, setting.until - status.now))}"
            )
            marks.append(name + left)
    if differs(status):
        marks.append("declared sizes differ")
    if (left_closed := held_off(status)) is not None:
        marks.append(f"held off for {duration(left_closed)}")
    if status.forced:
        marks.append(f"{status.forced} forced")
    if status.kind == "rate" and status.tokens is not None and not status.paused:
        marks.append(f"{status.tokens} free")
    return ", ".join(marks)
