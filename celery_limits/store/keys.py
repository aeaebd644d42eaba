"""The catalogue: every Redis key that the store writes, what is in it, and how long it lives.

`{ns}` is the namespace; it is the hash tag, so a namespace lives in one slot of a cluster.

| key `limits:{ns}:…` | type | members | lives |
|---|---|---|---|
| `task:<task id>` | hash | `<nonce>` -> a ticket's record, `<nonce>:m` -> its message | until released or forgotten |
| `hold:<key>` | set | tickets that have a slot; weight w is w members | while anyone holds |
| `line:<class>:<key>` | sorted set | tickets that wait -> (rank, arrival) | while anyone waits |
| `note:<key>` | hash | settings `size` `rate` `paused` `f.*`; `class:<class>` `pace` `paced` | these while waited for |
| `rates` | sorted set | key -> theoretical arrival time | until that time has passed and a sweep came by |
| `worker:<worker>` | sorted set | `!`, its tickets -> fence, its refreshes | from beat to leave or lapse |
| `dead:<worker>` | sorted set | what a lapsed worker had | until it is recovered |
| `leases` | sorted set | worker -> when its lease lapses | while there are workers |
| `pulse` | hash | `at`, `grace` | while there are workers |
| `alarms` | sorted set | `<what>|<whom>` -> when | until they have rung |
| `bell` | list | one entry when a sweeper is needed within a second | until one sweeps |
| `ready:<queue>` | list | granted tickets at the front of a queue, first come first | until fetched |
| `call:<queue>` | list | one entry while there may be something to fetch | until fetched, or ten seconds |
| `unacked:<worker>` | hash | number -> queue, list and message, as fetched | until acknowledged or given back |
| `outbox` | sorted set | tickets to publish or to end -> when they may be claimed | until settled |
| `cancelled:<task id>` | string | | as long as a revoke is remembered |
| `aside` | hash | ticket -> what could not be read | until a person removes it |
| `serial` | string | the last arrival or fence given | setting: for ever |
| `config` | hash | the times of `Policy`, in microseconds | setting: for ever |
"""

from __future__ import annotations

import re

__all__ = ["BELLS", "NOTE_SETTINGS", "SETTINGS", "glob_escape", "limit_key", "prefix_of", "split_line"]

SETTINGS = frozenset({"serial", "config"})
"""Keys that stay when all is quiet."""

NOTE_SETTINGS = re.compile(r"size|rate|paused|f\..*")
"""Fields of a note that stay when all is quiet."""

BELLS = "call:"
"""Keys that wake whoever waits for work, and go by themselves."""

_NAMESPACE = re.compile(r"[A-Za-z0-9_.:-]{1,100}")


def prefix_of(namespace: str) -> str:
    if not _NAMESPACE.fullmatch(namespace):
        raise ValueError(f"namespace {namespace!r}: use 1 to 100 of the characters A-Z a-z 0-9 _ . : -")
    return f"limits:{{{namespace}}}:"


def glob_escape(prefix: str) -> str:
    """A prefix as it stands in a pattern for SCAN. A broker's `global_keyprefix` may have any characters."""
    return re.sub(r"([\\\[\]*?])", r"\\\1", prefix)


def split_line(rest: str) -> tuple[str, str]:
    """Class and key of `line:<rest>`: a class is `c:<size>`, `f:<size>` or `r:<interval>:<burst>`."""
    letter, _, tail = rest.partition(":")
    *sizes, key = tail.split(":", 2 if letter == "r" else 1)
    return ":".join([letter, *sizes]), key


def limit_key(name: str) -> str | None:
    """The key of a limit that a Redis key (without the prefix) is about; None for one that is about something else."""
    kind, _, rest = name.partition(":")
    if kind == "line":
        return split_line(rest)[1]
    return rest if kind in ("hold", "note") else None
