"""The log of changes: who changed what, when, from what to what, and why. The script that makes a change writes it."""

from __future__ import annotations

import getpass
import json
import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from .errors import translated
from .status import rate_text

__all__ = ["MOST_KEPT", "Author", "Change", "read_changes", "this_user"]

MOST_KEPT = 1000
"""Changes that the store keeps; as in lua/include/changes.lua."""
LONGEST_REASON = 500


def this_user() -> str:
    """`user@host` of this process."""
    user = ""
    with suppress(Exception):  # an id without a name, as in many containers
        user = getpass.getuser()
    return f"{user or os.getuid()}@{socket.gethostname()}"


@dataclass(frozen=True, slots=True)
class Author:
    """Who makes a change, by which way, and why. One is made for each call: its id tells a repeated call from a new
    one."""

    by: str = field(default_factory=this_user)
    via: str = "python"
    reason: str = ""
    id: str = field(default_factory=lambda: secrets.token_hex(8))

    def __post_init__(self) -> None:
        if len(self.reason) > LONGEST_REASON:
            raise ValueError(f"the reason has {len(self.reason)} characters; {LONGEST_REASON} at most are kept")

    @property
    def fields(self) -> tuple[str, str, str, str]:
        return self.id, self.by[:200], self.via, self.reason


@dataclass(frozen=True, slots=True)
class Change:
    """One entry of the log. `subject` is a key, "queue <name>" or "task <id>". `old` and `new` are None where what
    the tasks declare is in force; `until`: when it ends by itself. Times are seconds of the server's clock."""

    at: float
    by: str
    via: str
    what: str
    subject: str
    old: str | None
    new: str | None
    reason: str
    until: float | None

    @classmethod
    def decode(cls, raw: bytes) -> Change:
        entry: dict[str, Any] = json.loads(raw.decode(errors="replace"))
        texts = {name: str(entry.get(name, "")) for name in ("by", "via", "what", "subject", "reason")}
        till = entry.get("until")
        return cls(
            at=float(entry["at"]) / 1e6,
            old=_value(entry.get("old", "")),
            new=_value(entry.get("new", "")),
            until=float(till) / 1e6 if till else None,
            **texts,
        )


def _value(raw: str) -> str | None:
    """A setting of a key as a person writes it: `5`, `100/m burst 20`."""
    field_, _, value = raw.partition(" ")
    if field_ == "size":
        return value
    if field_ == "rate":
        interval, _, burst = value.partition(" ")
        with suppress(ValueError):
            return f"{rate_text(float(interval))} burst {burst}"
    return raw or None


def read_changes(store: Any, count: int = 100, subject: str | None = None) -> list[Change]:
    """The newest first; with `subject` those of one key, queue or task."""
    with translated("changes"):
        entries = store.client.lrange(f"{store.prefix}changes", 0, (count if subject is None else MOST_KEPT) - 1)
    found = [change for change in _decoded(entries) if subject is None or change.subject == subject]
    return found[:count]


def _decoded(entries: list[bytes]) -> Iterator[Change]:
    for raw in entries:
        with suppress(ValueError, KeyError, TypeError, AttributeError):  # written by someone else
            yield Change.decode(raw)
