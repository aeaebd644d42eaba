"""What a script does to holders, lines and rates, in the order in which it does it.

The scripts of the model-based tests write it down as they go, in a list outside of the namespace: so each grant can be
judged at its own moment, in a sweep that recovers a dead worker's tickets as well as in the release of one slot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import NamedTuple

from celery_limits.store.scripts import Script

__all__ = ["TRACE", "Event", "events_in", "traced"]

TRACE = "trace"

_CALL = "local call, P = redis.call, KEYS[1]\n"
_WATCHED = """local P, call = KEYS[1], nil
do
  local named = { HSET = 'enter', HDEL = 'free', ZADD = 'join', ZREM = 'leave' }
  call = function(verb, name, ...)
    local kind = named[verb] and string.match(string.sub(name, #P + 1), '^(%l+):')
    if kind == 'hold' or kind == 'line' then
      local key, a, b = string.match(name, '([^:]*)$'), ...
      if verb == 'ZADD' then a, b = b, a end
      redis.call('RPUSH', 'trace', table.concat({ named[verb], key, a, b or '' }, '\\n'))
    end
    return redis.call(verb, name, ...)
  end
end
"""
_PAID = "      amount = links[o + WEIGHT]\n"
_PASSED = "      redis.call('RPUSH', 'trace', table.concat({ 'pass', links[o + KEY], t.id, '' }, '\\n'))\n"


class Event(NamedTuple):
    """`what`: join or leave a line, enter or free a slot, pass a rate. `number`: the order in a line."""

    what: str
    key: str
    ticket: str
    number: str


def traced(scripts: Callable[[str], Script]) -> Callable[[str], Script]:
    """The same scripts, which write down what they do. The keys of the model have no colon in them."""

    @cache
    def load_traced(verb: str) -> Script:
        text = scripts(verb).text
        assert _CALL in text, f"{verb} does not begin as expected"
        assert (_PAID in text) == ("local function take(" in text), f"{verb} pays for a rate in another place"
        return Script(verb, text.replace(_CALL, _WATCHED).replace(_PAID, _PAID + _PASSED))

    return load_traced


def events_in(trace: Iterable[bytes]) -> list[Event]:
    return [Event(*line.decode().split("\n")) for line in trace]
