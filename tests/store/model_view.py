"""What the model sees of the store: the whole namespace, read with one small script, as plain Python values.

Nothing is interpreted here beyond the catalogue in `celery_limits.store.keys` and the layout of a ticket's record.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha1
from typing import Any, NamedTuple

from hiredis import pack_command

from celery_limits.store import Store

from .post import LISTS, ticket_in

__all__ = ["HOLDING", "LOOK_AT", "Delivered", "Reader", "Record", "View"]

HOLDING = frozenset({"running", "granted", "waiting"})
"""States in which a ticket keeps the slots of the links it has passed."""

LOOK_AT = tuple(LISTS.values())
"""The lists of our transport's queue: they are not in the namespace."""

_DUMP = """
local read = { hash = 'HGETALL', string = 'GET' }
local found = {}
for _, name in ipairs(redis.call('KEYS', KEYS[1] .. '*')) do
  local kind, short = redis.call('TYPE', name).ok, string.sub(name, #KEYS[1] + 1)
  if not string.find(short, '^call:') then -- those go by themselves, by a clock that is not ours
    found[#found + 1] = short
    if kind == 'zset' then
      found[#found + 1] = redis.call('ZRANGE', name, 0, -1, 'WITHSCORES')
    elseif kind == 'list' then
      found[#found + 1] = redis.call('LRANGE', name, 0, -1)
    else
      found[#found + 1] = redis.call(read[kind], name)
    end
  end
end
for _, name in ipairs(ARGV) do
  local texts = redis.call('LRANGE', name, 0, -1)
  if texts[1] then
    found[#found + 1] = 'list:' .. name
    found[#found + 1] = texts
  end
end
found[#found + 1] = redis.call('LRANGE', 'trace', 0, -1)
redis.call('DEL', 'trace')
return found
"""


class Delivered(NamedTuple):
    """What a worker has fetched and not acknowledged. `ticket`: of one that was granted when it was fetched."""

    queue: str
    list: str
    ticket: str
    text: bytes


@lru_cache(maxsize=20_000)
def _delivered(raw: bytes) -> Delivered:
    queue, list_, ticket, text = raw.split(b"\n", 3)
    return Delivered(queue.decode(), list_.decode(), ticket.decode(), text)


class Record(NamedTuple):
    """A ticket's record. `passed` and `reached` count links: those it is past now, and those it ever was past."""

    state: str
    worker: str
    fence: int
    sends: int
    arrival: int
    passed: int
    reached: int
    kept: str
    reason: str
    delivery: str
    late: bool
    since: int


@lru_cache(maxsize=20_000)
def _record(raw: bytes) -> Record:
    f = raw.decode().split("\t")
    passed, reached, late, since = int(f[5]) - 1, int(f[6]) - 1, f[14] == "1", int(f[13] or 0)
    return Record(f[0], f[1], int(f[2]), int(f[3]), int(f[4]), passed, reached, f[7], f[8], f[10], late, since)


class View:
    """One moment of the namespace. `raw` is all of it, for the question whether anything has changed at all."""

    __slots__ = (
        "alarms",
        "cancelled",
        "carried",
        "dead",
        "followers",
        "groups",
        "holders",
        "idle",
        "lines",
        "messages",
        "notes",
        "outbox",
        "queued",
        "rates",
        "raw",
        "ready",
        "tickets",
        "trace",
        "unacked",
    )

    def __init__(self, raw: dict[str, Any], trace: Sequence[bytes] = ()) -> None:
        self.raw = raw
        self.trace = trace
        """What the calls since the last look have done, in their order: see `model_trace`."""
        self.tickets: dict[str, Record] = {}
        self.messages: dict[str, bytes] = {}
        self.holders: dict[str, dict[str, int]] = {}
        """By key, ticket -> weight."""
        self.lines: dict[str, list[str]] = {}
        self.notes: dict[str, dict[str, str]] = {}
        self.groups: dict[str, dict[str, tuple[float, ...]]] = {}
        """By key, group -> what it holds, its share, its mark, how many of it wait, whose share that is."""
        self.followers: set[str] = set()
        self.idle: dict[str, dict[str, float]] = {}
        self.ready: dict[str, list[str]] = {}
        self.queued: dict[str, list[bytes]] = {}
        self.unacked: dict[str, dict[str, Delivered]] = {}
        self.carried: dict[str, int] = {}
        """Copies of a message in the queue's lists and with workers that have fetched them."""
        self.dead: set[str] = set()
        self.cancelled: set[str] = set()
        self.alarms: dict[str, float] = _scores(raw.get("alarms", ()))
        self.outbox: dict[str, float] = _scores(raw.get("outbox", ()))
        self.rates: dict[str, float] = _scores(raw.get("rates", ()))
        for name, value in raw.items():
            kind, _, rest = name.partition(":")
            if rest:
                getattr(self, f"_read_{kind}")(rest, value)

    def _read_task(self, task: str, flat: list[bytes]) -> None:
        for i in range(0, len(flat), 2):
            nonce, _, suffix = flat[i].decode().partition(":")
            if suffix:
                self.messages[f"{task}.{nonce}"] = flat[i + 1]
            else:
                self.tickets[f"{task}.{nonce}"] = _record(flat[i + 1])

    def _read_hold(self, key: str, flat: list[bytes]) -> None:
        self.holders[key] = {flat[i].decode(): int(flat[i + 1]) for i in range(0, len(flat), 2)}

    def _read_line(self, name: str, flat: list[bytes]) -> None:
        # The keys of the model have no colon in them, whatever a class is made of.
        self.lines.setdefault(name.rpartition(":")[2], []).extend(t.decode() for t in flat[::2])

    def _read_note(self, key: str, flat: list[bytes]) -> None:
        self.notes[key] = {flat[i].decode(): flat[i + 1].decode() for i in range(0, len(flat), 2)}

    def _read_groups(self, key: str, flat: list[bytes]) -> None:
        pairs = ((flat[i].decode(), flat[i + 1].decode()) for i in range(0, len(flat), 2))
        self.groups[key] = {name: tuple(map(float, text.split())) for name, text in pairs if "\t" not in name}

    def _read_idle(self, key: str, flat: list[bytes]) -> None:
        self.idle[key] = _scores(flat)

    def _read_followers(self, queue: str, flat: list[bytes]) -> None:
        self.followers = {key.decode() for key in flat[::2]}

    def _read_turns(self, name: str, flat: list[bytes]) -> None:
        """The audit holds it against the groups."""

    _read_group = _read_turns

    def fair(self, key: str) -> tuple[float, float] | None:
        """Of a key where a group was met: what all hold, or the virtual time; and the mark of those without one."""
        text = self.notes.get(key, {}).get("fair")
        return (float(text.split()[1]), float(text.split()[2])) if text else None

    def classes(self, key: str) -> list[str]:
        return [name[6:] for name in self.notes.get(key, {}) if name.startswith("class:")]

    def _read_ready(self, queue: str, tickets: list[bytes]) -> None:
        self.ready[queue] = [t.decode() for t in tickets[::2]]

    def _read_list(self, name: str, texts: list[bytes]) -> None:
        self.queued[name] = texts
        for text in texts:
            self._carry(text)

    def _read_unacked(self, worker: str, flat: list[bytes]) -> None:
        parted = (member.partition(b"\n") for member in flat[::2])
        found = self.unacked[worker] = {field.decode(): _delivered(rest) for field, _, rest in parted}
        for one in found.values():
            self._carry(one.text)

    def _carry(self, text: bytes) -> None:
        ticket = ticket_in(text)
        self.carried[ticket] = self.carried.get(ticket, 0) + 1

    def _read_worker(self, worker: str, flat: list[bytes]) -> None:
        """What is in it is seen in the records."""

    def _read_dead(self, worker: str, flat: list[bytes]) -> None:
        self.dead.add(worker)

    def _read_cancelled(self, task: str, _: bytes) -> None:
        self.cancelled.add(task)

    def same_as(self, other: View) -> bool:
        """Is every value the same? Redis may list a hash or a set in another order after merely looking at it."""
        return self.raw == other.raw or _unordered(self.raw) == _unordered(other.raw)

    @property
    def serial(self) -> int:
        return int(self.raw.get("serial", 0))

    def sealed(self, ticket: str, arrival: int) -> str:
        """An arrival as the store writes it into a message, sealed with the secret that it keeps; '' for none."""
        flat = self.raw.get("config", [])
        secret = dict(zip(flat[::2], flat[1::2], strict=True)).get(b"seal")
        if not arrival or secret is None:
            return ""
        inner = sha1(secret + f"{arrival}:{ticket}".encode()).hexdigest()
        return f"{arrival}-{sha1(secret + inner.encode()).hexdigest()[:20]}"

    def copies(self, ticket: str) -> int:
        """Of its message, in the store or with our transport."""
        return self.carried.get(ticket, 0) + (ticket in self.messages)

    def used(self, key: str) -> int:
        return sum(self.holders.get(key, {}).values())

    def waiting(self, key: str) -> int:
        return len(self.lines.get(key, ()))


def _scores(flat: Any) -> dict[str, float]:
    return {flat[i].decode(): float(flat[i + 1]) for i in range(0, len(flat), 2)}


_HASHES = frozenset({"task", "hold", "groups", "note", "places", "pulse", "config", "aside"})


def _unordered(raw: dict[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for name, value in raw.items():
        kind = name.partition(":")[0]
        if kind in _HASHES:
            plain[name] = dict(zip(value[::2], value[1::2], strict=True))
        else:
            plain[name] = value
    return plain


class Reader:
    """Reads the namespace of a store, past its verbs and past redis-py's machinery: it is called at every step."""

    def __init__(self, store: Store) -> None:
        client: Any = store.client
        pool = client.connection_pool
        self._connection = pool.connection_class(**pool.connection_kwargs)
        self._command = [pack_command(("EVALSHA", client.script_load(_DUMP), "1", store.prefix, *LOOK_AT))]

    def read(self) -> View:
        self._connection.send_packed_command(self._command, check_health=False)
        flat = self._connection.read_response(disable_decoding=True)
        trace = flat.pop()
        return View({flat[i].decode(): flat[i + 1] for i in range(0, len(flat), 2)}, trace)

    def close(self) -> None:
        self._connection.disconnect()
