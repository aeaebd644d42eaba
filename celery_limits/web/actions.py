"""What a visitor who may operate can do. Each is recorded in the log of changes, with the visitor's name and reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery_limits.app.handle import Limits
from celery_limits.cli.base import Failure
from celery_limits.cli.shape import finding_data, key_data
from celery_limits.cli.steering import size_of
from celery_limits.cli.times import parse_duration
from celery_limits.store.changes import Author
from celery_limits.store.status import Status

from .access import Visitor

__all__ = ["KEY_ACTIONS", "QUEUE_ACTIONS", "TASK_ACTIONS", "Actions", "Refusal"]

KEY_ACTIONS = {
    "resize": "resize", "reset": "reset", "pause": "pause", "resume": "resume", "hold-off": "hold_off"
}  # fmt: skip
TASK_ACTIONS = {"cancel": "cancel", "run": "run"}
QUEUE_ACTIONS = {"pause": "pause_queue", "resume": "resume_queue"}


class Refusal(ValueError):
    """What was asked for can't be done; it says what to write instead."""

    def __init__(self, text: str, kind: str = "BadRequest") -> None:
        super().__init__(text)
        self.kind = kind


class Actions:
    """One POST: who, and the fields of the form."""

    def __init__(self, limits: Limits, who: Visitor, form: Mapping[str, str]) -> None:
        self._limits, self._form = limits, form
        try:
            self._author = Author(by=who.name or "web", via="web", reason=form.get("reason", "").strip())
        except ValueError as error:
            raise Refusal(str(error)) from None

    def _time(self, *names: str) -> float | None:
        text = next((self._form[name] for name in names if self._form.get(name, "").strip()), "")
        try:
            return parse_duration(text) if text else None
        except ValueError as error:
            raise Refusal(str(error), "BadTime") from None

    def _status(self, key: str) -> Status:
        return self._limits.catalogue().complete(self._limits.store.status(key, 0))

    def _after(self, key: str) -> dict[str, Any]:
        return key_data(self._status(key))

    def resize(self, key: str) -> dict[str, Any]:
        status, burst = self._status(key), self._form.get("burst", "").strip()
        if burst and not burst.isdecimal():
            raise Refusal(f"{burst!r} is no whole number", "BadSize")
        try:
            size = size_of(key, status.kind, self._form.get("size", "").strip())
        except Failure as error:
            raise Refusal(error.message, error.kind) from None
        burst_in_force = int(burst) if burst else status.burst or 1
        self._limits.resize(key, size, burst_in_force, seconds=self._time("for"), author=self._author)
        return self._after(key)

    def reset(self, key: str) -> dict[str, Any]:
        self._limits.reset(key, author=self._author)
        return self._after(key)

    def pause(self, key: str) -> dict[str, Any]:
        self._limits.pause(key, seconds=self._time("for"), author=self._author)
        return self._after(key)

    def resume(self, key: str) -> dict[str, Any]:
        self._limits.resume(key, author=self._author)
        return self._after(key)

    def hold_off(self, key: str) -> dict[str, Any]:
        """Closes the key for a time, as a body does whose service said to wait."""
        seconds = self._time("seconds", "for")
        if seconds is None:
            raise Refusal("hold off for how long? Write 30s, 10m or 1h", "BadTime")
        close: Any = getattr(self._limits, "hold_off", None)
        if close is None:  # a pause that ends by itself does the same to a key from outside
            self._limits.pause(key, seconds=seconds, author=self._author)
        else:
            close(key, seconds)
        return self._after(key)

    def cancel(self, task_id: str) -> dict[str, Any]:
        outcome = self._limits.cancel(task_id, author=self._author)
        return {"task_id": task_id, "ended": len(outcome.ended), "running": outcome.running}

    def run(self, task_id: str) -> dict[str, Any]:
        forced = self._limits.run(task_id, author=self._author)
        if not forced.let and not forced.begun:
            raise Refusal(f"{task_id} does not wait for a limit, so there is none for it to pass", "NotWaiting")
        return {"task_id": task_id, "ran": forced.let, "begun": forced.begun, "over": list(forced.keys)}

    def pause_queue(self, queue: str) -> dict[str, Any]:
        self._limits.pause_queue(queue, seconds=self._time("for"), author=self._author)
        return {"queue": queue, "paused": True}

    def resume_queue(self, queue: str) -> dict[str, Any]:
        self._limits.resume_queue(queue, author=self._author)
        return {"queue": queue, "paused": False}

    def repair(self) -> dict[str, Any]:
        findings = self._limits.audit(repair=True)
        left = self._limits.audit() if findings else []
        return {"clean": not left, "findings": [finding_data(finding) for finding in findings]}
