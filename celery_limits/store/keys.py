"""The catalogue: every Redis key that the store writes, what is in it, and how long it lives.

`{ns}` is the namespace; it is the hash tag, so a namespace lives in one slot of a cluster.

| key `limits:{ns}:…` | type | members | lives |
|---|---|---|---|
| `task:<task id>` | hash | `<nonce>` -> a ticket's record, `<nonce>:m` -> its message | until released or forgotten |
| `hold:<key>` | hash | tickets that have a slot -> weight | while anyone holds |
| `line:<class>:<key>` | sorted set | tickets that wait -> (rank, arrival) | while anyone waits |
| `note:<key>` | hash | set (`size[.*]` `rate` `paused[.*]` `f.*`) and traces of use: lua/include/note.lua | in use |
| `begun:<key>` | set | waiters that had begun before (retries): not counted by `max_waiting` | while any waits |
| `groups:<key>` | hash | group -> what it holds, its share, mark, waiters; its members of `turns` | while `fair` |
| `turns:<class>:<key>` | sorted set | `<rank>|<level>|<mark>|<arrival>|<group>`, who is next first | while any waits |
| `group:<class>:<key>⇥<group>` | sorted set | tickets of the group that wait -> (rank, arrival) | while any waits |
| `idle:<key>` | sorted set | groups that neither hold nor wait -> mark; 1000 at most | while `fair` |
| `followers:<queue>` | sorted set | keys whose size follows the queue's workers -> a serial number | while any waits |
| `newest:<key>[⇥<group>]` | sorted set | tickets that wait and may be superseded -> arrival | while any waits |
| `runs:<key>[⇥<group>]` | sorted set | holders that may be preempted -> serial, < 0 once they are | while any holds |
| `orders:<worker>` | sorted set | tickets that the worker runs and is to end -> since when | until released |
| `successors` | hash | `task <task id>`, `key <key>` -> who superseded it, or the last one there | as `trails` |
| `trails` | sorted set | fields of `successors` -> until when; 50 000 at most | as long as a revoke is remembered |
| `rates` | sorted set | key -> theoretical arrival time | until that time has passed and a sweep came by |
| `worker:<worker>` | sorted set | `!`, its tickets -> fence, its refreshes | from beat to leave or lapse |
| `dead:<worker>` | sorted set | what a lapsed worker had | until it is recovered |
| `leases` | sorted set | worker -> when its lease lapses | while there are workers |
| `places` | hash | `w:<worker>` -> places, queues; `q:<queue>` -> their sums; `all` | an entry as long as its lease |
| `pulse` | hash | `at`, `grace` | while there are workers |
| `alarms` | sorted set | `<what>|<whom>` -> when | until they have rung |
| `bell` | list | one entry when a sweeper is needed within a second | until one sweeps |
| `bell:<worker>` | list | one entry when there are orders for the worker | until it sweeps, or ten seconds |
| `ready:<queue>` | sorted set | granted tickets at the front of a queue, the lowest first | until fetched |
| `call:<queue>` | list | one entry while there may be something to fetch | until fetched, or ten seconds |
| `unacked:<worker>` | sorted set | deliveries with their messages -> number | until acknowledged or requeued |
| `outbox` | sorted set | tickets to publish or to end -> when they may be claimed | until settled |
| `later` | sorted set | `<arrival>|<ticket>` of delayed messages -> when they are due | until due or ended |
| `drained:<list>` | list | the front of a queue's list, while a drain puts messages between | until it is complete |
| `unreported` | hash | ended tickets -> failed reports, when the last was, its error class | until settled |
| `cancelled:<task id>` | string | | as long as a revoke is remembered |
| `remembered` | sorted set | those task ids -> until when; 50 000 at most | likewise |
| `aside` | hash | ticket, or `message <digest>` -> what could not be read | until a person removes it |
| `counts` | hash | `parked`: how often a ticket was parked, for metrics | setting: for ever |
| `stopped` | hash | queues that people have paused -> since, until, by, reason | setting: until resumed |
| `changes` | list | what people have changed, the newest first, as JSON; 1000 at most | setting: for ever |
| `forced` | hash | key -> how many tasks people have let through past it | setting: for ever |
| `serial` | string | the last arrival or fence given | setting: for ever |
| `clock` | string | `<mark> <ahead>`: the latest time kept, and its lead over the server's | setting: for ever |
| `config` | hash | the times of `Policy`, in microseconds; `trust`; `delays`; `seal`, a secret | setting: for ever |
"""

from __future__ import annotations

import re

__all__ = ["BELLS", "NOTE_SETTINGS", "SETTINGS", "glob_escape", "limit_key", "prefix_of", "split_line"]

SETTINGS = frozenset({"serial", "clock", "config", "counts", "changes", "forced", "stopped"})
"""Keys that stay when all is quiet."""

NOTE_SETTINGS = re.compile(r"(size|paused)(\.(until|by|reason|before))?|rate|f\..*")
"""Fields of a note that stay when all is quiet."""

BELLS = ("call:", "bell:")
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
    """Class and key of `line:<rest>`: a class is `c:<size>`, `f:<size>`, `w:<queue>`, `r:<interval>:<burst>` or `m`,
    with a g before it for tickets that name a group."""
    letter, _, tail = rest.partition(":")
    *sizes, key = tail.split(":", {"r": 2, "m": 0}.get(letter[-1:], 1))
    return ":".join([letter, *sizes]), key


def limit_key(name: str) -> str | None:
    """The key of a limit that a Redis key (without the prefix) is about; None for one that is about something else."""
    kind, _, rest = name.partition(":")
    if kind == "line":
        return split_line(rest)[1]
    return rest if kind in ("hold", "note") else None
