"""The store and a look at all of it in one trip to Redis, since half the time of a simulation is the way there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hiredis import pack_command
from redis import Redis
from redis import exceptions as redis_errors

from celery_limits.store import Store
from celery_limits.store.errors import translate
from celery_limits.store.keys import SETTINGS
from celery_limits.store.script_runner import Arg, ScriptRunner
from celery_limits.store.scripts import VERBS, Script, load
from tests.store.actors import Clock
from tests.store.model import POLICY
from tests.store.model_trace import traced
from tests.store.model_view import LOOK_AT, Reader, View
from tests.store.post import QUEUE

__all__ = ["BELL", "CALL", "SeenReader", "Stage"]

BELL, CALL = "bell", f"call:{QUEUE}"
"""What those sleep on who keep house, and those who fetch."""

UNSEEN = frozenset({"status", "explain", "audit"})
"""Verbs after which nobody looks."""


# The catalogue says of what type a key is. What beats alone move, and what goes by the server's own clock, is left out:
# nothing that is checked depends on it, and without it a look after a call that did nothing is the same as before.
# A kind is told by the first three letters of its name.
_LOOK = """
local call, sub, prefix = redis.call, string.sub, KEYS[1]
local from, found, n = #prefix + 1, { redis.call('EXISTS', KEYS[2]), redis.call('EXISTS', KEYS[3]) }, 2
local function list(name) return call('LRANGE', name, 0, -1) end
local function range(name) return call('ZRANGE', name, 0, -1, 'WITHSCORES') end
local function hash(name) return call('HGETALL', name) end
local function groups(name) return (sub(name, from, from + 6) == 'groups:' and hash or range)(name) end
local function get(name) return call('GET', name) end
local kinds = { tas = hash, hol = hash, lin = range, ['not'] = hash, rat = range, wor = range, dea = range, ala = range,
  rea = range, out = range, can = get, asi = hash, ser = get, una = range,
  gro = groups, tur = range, idl = range, fol = range, pla = hash,
  rem = range, con = hash, lea = 0, pul = 0, clo = 0, cal = 0, bel = 0, cou = 0, beg = 0, unr = 0, lat = 0 }
for _, name in ipairs(call('KEYS', prefix .. '*')) do
  local read = kinds[sub(name, from, from + 2)]
  if read ~= 0 then
    found[n + 1], found[n + 2] = sub(name, from), read(name)
    n = n + 2
  end
end
for _, name in ipairs(ARGV) do
  local texts = list(name)
  if texts[1] then
    found[n + 1], found[n + 2] = 'list:' .. name, texts
    n = n + 2
  end
end
found[n + 1] = list('trace')
call('DEL', 'trace')
return found
"""


class LookingRunner(ScriptRunner):
    """Sends each verb together with the script that reads the whole namespace. All scripts must have been loaded.

    Where the answer is certain, and nothing that is looked at will change, the call waits and goes with the next one;
    the answer is held against what was `foretold`. So a renewal, or a fetch from empty queues, costs no trip.
    """

    look: bytes
    looking = True
    """Whether anybody looks after each call; else only after the story."""
    seen: Any = None
    foretold: Any = None

    def __init__(self, client: Redis, prefix: str) -> None:
        super().__init__(client, prefix)
        self._waiting: list[bytes] = []
        self._due: list[tuple[str, Any]] = []

    def __call__(self, script: Script, *args: Arg) -> Any:
        command = pack_command(("EVALSHA", script.sha, "1", self._prefix, *args))  # type: ignore[arg-type]
        foretold, self.foretold = self.foretold, None
        if foretold is not None:
            return self.later(command, script.verb, foretold)
        looks = self.looking and script.verb not in UNSEEN
        connection = self._send_all(command + self.look if looks else command)
        try:
            reply = connection.read_response(disable_decoding=True)
        except redis_errors.ResponseError as error:
            connection.disconnect()
            raise translate(error, script.verb) from error
        if looks:
            self.seen = connection.read_response(disable_decoding=True)
        return reply

    def later(self, command: bytes, verb: str, foretold: Any) -> Any:
        self._waiting.append(command)
        self._due.append((verb, foretold))
        return foretold

    def look_around(self) -> Any:
        return self._send_all(self.look).read_response(disable_decoding=True)

    def abandon(self) -> None:
        """What still waits is of a story that has failed."""
        self._waiting.clear()
        self._due.clear()
        self.foretold = None

    def settle(self) -> None:
        """Nothing waits any more."""
        if self._waiting:
            self._send_all(b"")

    def _send_all(self, command: bytes) -> Any:
        connection = self._connection()
        due, self._due = self._due, []
        connection.send_packed_command([b"".join((*self._waiting, command))], check_health=False)
        self._waiting.clear()
        for verb, foretold in due:
            reply = connection.read_response(disable_decoding=True)
            if reply != foretold:
                connection.disconnect()
                raise AssertionError(f"{verb} answered {reply}, {foretold} was due")
        return connection


class SeenReader(Reader):
    """Has what the last call has brought along, and only goes to Redis where nothing was ever looked at."""

    def __init__(self, store: Store, caller: LookingRunner) -> None:
        client: Any = store.client
        keys = ("3", store.prefix, *(store.prefix + bell for bell in (BELL, CALL)))
        caller.look = pack_command(("EVALSHA", client.script_load(_LOOK), *keys, *LOOK_AT))
        self._caller = caller
        self._flat: Any = None
        self._view = View({})
        self.rung: set[str] = set()
        """The bells that hang in the store, for whoever waits for one next."""

    def forget(self) -> None:
        self._caller.seen = self._flat = None

    def read(self) -> View:
        """The very view of before where nothing has changed."""
        flat, self._caller.seen = self._caller.seen, None
        if flat is None:
            if self._flat is not None:
                return self._view
            flat = self._caller.look_around()
        self.rung = {bell for bell, rings in zip((BELL, CALL), flat[:2], strict=True) if rings}
        del flat[:2]
        trace = flat.pop()
        if flat != self._flat or trace:
            self._flat = flat
            self._view = View({flat[i].decode(): flat[i + 1] for i in range(0, len(flat), 2)}, trace)
        return self._view

    def close(self) -> None:
        """It has no connection of its own."""


class Stage:
    """What all stories on one server share: the store, with these scripts, its clock and its reader."""

    def __init__(self, client: Redis, scripts: Callable[[str], Script] = load) -> None:
        loader: Any = client
        scripts = traced(scripts)
        for verb in VERBS:
            loader.script_load(scripts(verb).text)
        self.client = client
        self.clock = Clock()
        self.store = Store(client, "simulation", POLICY, self.clock, scripts)
        self.store._secret = "known"
        self.store._call = self.caller = LookingRunner(client, self.store.prefix)
        self.reader = SeenReader(self.store, self.caller)

    def clear(self) -> None:
        """As for the first story, whatever the last one has left."""
        self.caller.abandon()
        self.caller.looking = True
        self.caller.later(pack_command(("FLUSHDB",)), "FLUSHDB", b"OK")
        self.reader.forget()
        self.clock.reset()

    def is_empty(self) -> bool:
        """But for settings, so that there is nothing to audit."""
        self.caller.settle()
        client: Any = self.client
        return {*client.keys(self.store.prefix + "*")} <= {(self.store.prefix + name).encode() for name in SETTINGS}

    def silence(self, bell: str) -> None:
        """Somebody has heard the bell, and with that has taken it."""
        self.caller.later(pack_command(("DEL", self.store.prefix + bell)), "DEL", 1)  # type: ignore[arg-type]
        self.reader.rung.discard(bell)

    def close(self) -> None:
        self.reader.close()
        self.store.close()
