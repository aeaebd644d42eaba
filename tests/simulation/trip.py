"""The store and a look at all of it in one trip to Redis, since half the time of a simulation is the way there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hiredis import pack_command
from redis import Redis
from redis import exceptions as redis_errors

from celery_limits.store import Store
from celery_limits.store.caller import Arg, Caller
from celery_limits.store.errors import translate
from celery_limits.store.scripts import VERBS, Script, load
from tests.store.actors import Clock
from tests.store.model import POLICY
from tests.store.model_view import Reader, View

__all__ = ["Stage"]

UNSEEN = frozenset({"beat", "status", "explain", "audit"})
"""Verbs after which nobody looks."""


# The catalogue says of what type a key is. What beats alone move, and what goes by the server's own clock, is left out:
# nothing that is checked depends on it, and without it a look after a call that did nothing is the same as before.
_LOOK = """
local list, range = { 'LRANGE', 0, -1 }, { 'ZRANGE', 0, -1, 'WITHSCORES' }
local set, hash, get = { 'SMEMBERS' }, { 'HGETALL' }, { 'GET' }
local kinds = { task = hash, hold = set, line = range, note = hash, rates = range, worker = range, dead = range,
  alarms = range, bell = list, ready = list, outbox = range, cancelled = get, aside = hash, serial = get }
local unseen = { leases = true, pulse = true, config = true, call = true }
local found = {}
for _, name in ipairs(redis.call('KEYS', KEYS[1] .. '*')) do
  local short = string.sub(name, #KEYS[1] + 1)
  local kind = string.match(short, '^%a+')
  if not unseen[kind] then
    local how = kinds[kind]
    found[#found + 1] = short
    found[#found + 1] = redis.call(how[1], name, unpack(how, 2))
  end
end
return found
"""


class LookingCaller(Caller):
    """Sends each verb together with the script that reads the whole namespace. All scripts must have been loaded."""

    look: bytes
    seen: Any = None

    def __call__(self, script: Script, *args: Arg) -> list[Any]:
        connection = self._connection()
        command = pack_command(("EVALSHA", script.sha, "1", self._prefix, *args))  # type: ignore[arg-type]
        looks = script.verb not in UNSEEN
        connection.send_packed_command([command + self.look if looks else command], check_health=False)
        try:
            reply: list[Any] = connection.read_response(disable_decoding=True)
        except redis_errors.ResponseError as error:
            connection.disconnect()
            raise translate(error, script.verb) from error
        if looks:
            self.seen = connection.read_response(disable_decoding=True)
        return reply


class SeenReader(Reader):
    """Has what the last call has brought along, and only goes to Redis where there was none."""

    def __init__(self, store: Store, caller: LookingCaller) -> None:
        super().__init__(store)
        client: Any = store.client
        caller.look = pack_command(("EVALSHA", client.script_load(_LOOK), "1", store.prefix))  # type: ignore[arg-type]
        self._command = [caller.look]
        self._caller = caller
        self._flat: Any = None
        self._view = View({})

    def forget(self) -> None:
        self._caller.seen = self._flat = None

    def read(self) -> View:
        """The very view of before where nothing has changed."""
        flat, self._caller.seen = self._caller.seen, None
        if flat is None:
            self._connection.send_packed_command(self._command, check_health=False)
            flat = self._connection.read_response(disable_decoding=True)
        if flat != self._flat:
            self._flat = flat
            self._view = View({flat[i].decode(): flat[i + 1] for i in range(0, len(flat), 2)})
        return self._view


class Stage:
    """What all stories on one server share: the store, with these scripts, its clock and its reader."""

    def __init__(self, client: Redis, scripts: Callable[[str], Script] = load) -> None:
        loader: Any = client
        for verb in VERBS:
            loader.script_load(scripts(verb).text)
        self.client = client
        self.clock = Clock()
        self.store = Store(client, "simulation", POLICY, self.clock, scripts)
        self.store._call = caller = LookingCaller(client, self.store.prefix)
        self.reader = SeenReader(self.store, caller)

    def clear(self) -> None:
        """As for the first story, whatever the last one has left."""
        client: Any = self.client
        client.flushdb()
        self.reader.forget()
        self.clock.now = Clock().now

    def close(self) -> None:
        self.reader.close()
        self.store.close()
