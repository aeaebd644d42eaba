"""Bugs that systems of this kind have shipped, as changes to the text of our scripts.

Each says in which verbs it is seeded, and fails when its place is not found: a bug that is not there proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from celery_limits.store.scripts import Script, load

__all__ = ["MUTATIONS", "OF_SHARES", "VIRTUAL_TIME", "Mutation"]


@dataclass(frozen=True)
class Mutation:
    name: str
    verbs: tuple[str, ...]
    changes: tuple[tuple[str, str], ...]
    found: str
    """What the model says when it has found this bug, and not another."""

    def scripts(self) -> Callable[[str], Script]:
        """A loader of scripts that has the bug; all but `verbs` are as they should be."""

        @cache
        def load_mutated(verb: str) -> Script:
            script = load(verb)
            return Script(verb, self._mutate(script.text, verb)) if verb in self.verbs else script

        for verb in self.verbs:
            load_mutated(verb)
        return load_mutated

    def _mutate(self, text: str, verb: str) -> str:
        for old, new in self.changes:
            assert old in text, f"{self.name}: {verb} has no {old!r}"
            text = text.replace(old, new)
        return text


WALKING = ("admit", "release", "cancel", "leave", "sweep", "resize", "pause", "refreshed")

# Between the check and the claim of a two-step admission others come and go. What such a check saw is what the call
# before this one did, kept outside the namespace; `choose` says which way it is wrong by now.
_COUNT = "local call, P = redis.call, KEYS[1]\n"
_STALE = """
local function count(key)
  local now, name = call('HLEN', P .. 'hold:' .. key), 'before:' .. key
  local before = tonumber(call('GET', name) or now)
  call('SET', name, now)
  return {choose}(before, now)
end
"""
_LOOKS = (
    ("call('HLEN', P .. 'hold:' .. links[o + KEY]) + links", "count(links[o + KEY]) + links"),
    ("return used(key) + weight", "return count(key) + weight"),
)
_PLAIN_ROOM = "+ links[o + WEIGHT] <= tonumber(links[o + SIZE])"
_NOTED_ROOM = "return used(key) + weight <= sized("

_WALKED_GRANT = """  leave_line(t)
  take(t, stop)
"""
_DROPPED_LINKS = """  leave_line(t)
  take(t, from + 1)
  stop, t.at, t.reached = t.n + 1, t.n + 1, t.n + 1
"""

TOO_SOON = r"^Admitted.* but (Parked|Full|Discarded)|^Parked.* but (Parked|Discarded)|let .* into .* of \d"
TOO_LATE = r"^(Parked|Full|Discarded).* but (Admitted|Parked|Full)|beside room"
UNPAID = r"are not what the tickets claim|tokens paid until|^passed .* too soon|^\w is paused"

_KEPT = """local own = kind ~= 'r' and group_of(t, o)
  if own and fair.read(key, own).held * 2 >= tonumber(t.links[o + SIZE]) then return false end
  if kind ~= 'r' then return used(key)"""
UNFAIR = r"out of turn|was due|beside room|the audit finds"

MUTATIONS = (
    # It saw room, another took it, it takes it too.
    Mutation("check-then-claim", ("admit",), ((_COUNT, _COUNT + _STALE.format(choose="math.min")), *_LOOKS), TOO_SOON),
    # One less than the limit runs; or, the other way round, one more.
    Mutation(
        "greater-or-equal-for-greater",
        WALKING,
        ((_PLAIN_ROOM, _PLAIN_ROOM.replace("<=", "<")), (_NOTED_ROOM, _NOTED_ROOM.replace("<=", "<"))),
        TOO_LATE,
    ),
    Mutation(
        "one-more-than-the-limit",
        WALKING,
        ((_PLAIN_ROOM, _PLAIN_ROOM.replace("<=", "- 1 <=")), (_NOTED_ROOM, _NOTED_ROOM.replace("<=", "- 1 <="))),
        TOO_SOON,
    ),
    # Whoever releases a ticket that runs frees its slots, be it for the second time or for another's run.
    Mutation(
        "release-without-fence",
        ("release",),
        (("string.sub(record, 1, #mine) ~= mine", "string.sub(record, 1, 8) ~= 'running\\t'"),),
        "for an admission that counts for nothing|Stale was due",
    ),
    # A freed slot runs its waiter at once, and the links that were still ahead are dropped: L2.
    Mutation("wake-without-walk", WALKING, ((_WALKED_GRANT, _DROPPED_LINKS),), UNPAID),
    # It saw no room, a slot was freed and found nobody waiting, it parks: S2.
    Mutation(
        "park-without-atomic-check",
        ("admit",),
        ((_COUNT, _COUNT + _STALE.format(choose="math.max")), *_LOOKS),
        TOO_LATE,
    ),
)

# One that was away has saved its turns up.
VIRTUAL_TIME = Mutation(
    "virtual-time-from-zero",
    WALKING,
    (
        ("then g.mark = math.max(f.sum, g.mark) end", "then g.mark = g.mark end"),
        ("g.mark = f.sum + amount / share", "g.mark = g.mark + amount / share"),
    ),
    "was due|out of turn",
)

_FIRST_GROUP = "call('ZRANGE', fair.turns(class, key), 0, 0)[1]"

OF_SHARES = (
    # A group's starts count, and not what it holds: short bodies are punished.
    Mutation(
        "starts-instead-of-held",
        WALKING,
        (("g.held, f.sum = math.max(0, g.held - amount), math.max(0, f.sum - amount)", "g.held = g.held"),),
        "groups are noted|out of turn",
    ),
    Mutation(
        "share-ignored", WALKING, (("local level, mark = g.held / share,", "local level, mark = g.held,"),), UNFAIR
    ),
    # Half of the key is kept for others, even where there are none.
    Mutation(
        "idle-slot-kept-for-a-group",
        WALKING,
        (("if kind ~= 'r' then return used(key)", _KEPT),),
        TOO_LATE,
    ),
    VIRTUAL_TIME,
    # The last in turn is served, but only where a dead worker's slots are given to others.
    Mutation(
        "recovery-out-of-turn",
        ("leave", "sweep"),
        ((_FIRST_GROUP, _FIRST_GROUP.replace("0, 0", "-1, -1")),),
        "out of turn",
    ),
    # Only the first message of a group says its share.
    Mutation(
        "first-share-for-ever",
        (*WALKING, "publish", "fetch"),
        (("if t.arrival < g.since then return false end", "if g.since > 0 then return false end"),),
        "shares at .* are noted",
    ),
    # A turn is worth the same whatever it costs.
    Mutation(
        "cost-ignored-at-a-rate",
        WALKING,
        (("g.mark = f.sum + amount / share", "g.mark = f.sum + 1 / share"),),
        "was due",
    ),
    # Groups that hold alike are served by arrival, so that the one with the oldest waiters has every turn.
    Mutation(
        "last-service-forgotten", WALKING, (("    g.mark = serial()\n", "    g.mark = 1\n"),), "out of turn|served at"
    ),
)
