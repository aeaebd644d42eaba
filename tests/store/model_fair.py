"""Fair shares as the model knows them: whose turn it is among the groups of a key, in plain Python.

`Order` follows every script event by event (`model_trace`) and keeps by itself what each group holds, what its share
is, when it was served last and, at a rate, its virtual time. So it knows at each grant whose turn it was, whichever
script made the grant; and what the store has noted of the groups is held against it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .model_message import Message, Place, Spec
from .model_trace import Event
from .model_view import View

if TYPE_CHECKING:
    from .model import World

__all__ = ["Order", "Shares", "groups_are_counted", "spec_at"]

RANK_SPAN = 2**45
Turn = tuple[float, float, float, float]


@dataclass
class Shares:
    """One key. `line` and `holders` are of tickets; `mark` is the number of a group's last service, or at a rate its
    own virtual time; `time` is that of the key."""

    rate: bool
    line: dict[str, tuple[Place, Spec]] = field(default_factory=dict)
    holders: dict[str, Spec] = field(default_factory=dict)
    met: bool = False
    """Whether a group was met; if not, it is priority and arrival."""
    share: dict[str, float] = field(default_factory=dict)
    since: dict[str, float] = field(default_factory=dict)
    mark: dict[str, float] = field(default_factory=dict)
    time: float = 0.0

    # -- whose turn it is ---------------------------------------------------------------------------------

    def turn(self, place: Place, spec: Spec, *, with_groups: bool) -> Turn:
        """Priority; then who holds the least for its share; then who was served longest ago; then arrival."""
        rank, arrival = place
        if not with_groups:
            return rank, 0.0, 0.0, arrival
        group = spec.group
        waits = self._waits(group)
        mark = self._mark_of_ungrouped() if not group else self.mark.get(group, 0.0)
        if self.rate:
            return rank, round(mark if waits else max(self.time, mark), 9), 0.0, arrival
        known = waits or arrival < self.since.get(group, 0)
        share = self.share.get(group, 1.0) if known else spec.share
        return rank, round(self._held(group) / share, 9), mark, arrival

    def ahead(self, ticket: str, place: Place, spec: Spec) -> list[tuple[str, Spec]]:
        """Those in line whose turn comes before that of this ticket."""
        with_groups = self.met or bool(spec.group)
        mine = self.turn(place, spec, with_groups=with_groups)
        others = [(t, p, s) for t, (p, s) in self.line.items() if t != ticket]
        return [(t, s) for t, p, s in others if self.turn(p, s, with_groups=with_groups) < mine]

    def used(self) -> int:
        return sum(spec.weight for spec in self.holders.values())

    def _held(self, group: str) -> int:
        return sum(spec.weight for spec in self.holders.values() if spec.group == group)

    def _waits(self, group: str) -> bool:
        return any(spec.group == group for _, spec in self.line.values())

    def _mark_of_ungrouped(self) -> float:
        """When no group was met before, those without one count as served just now."""
        if self.met:
            return self.mark.get("", 0.0)
        if self.rate:
            return 1.0 if self.line else 0.0
        return math.inf if self.line or self.holders else 0.0

    # -- what changes it ----------------------------------------------------------------------------------

    def meet(self, now: float) -> None:
        """The first ticket that names a group."""
        if not self.met:
            mark = self._mark_of_ungrouped()
            self.met, self.mark[""] = True, now if mark == math.inf else mark

    def say_share(self, spec: Spec, arrival: float) -> None:
        """Of messages of one group that say different shares, the latest counts."""
        if spec.group and arrival >= self.since.get(spec.group, 0):
            self.share[spec.group], self.since[spec.group] = spec.share, arrival

    def join(self, ticket: str, place: Place, spec: Spec, now: float) -> None:
        if spec.group:
            self.meet(now)
            self.say_share(spec, place[1])
        if self.met and self.rate and not self._waits(spec.group):
            self.mark[spec.group] = max(self.time, self.mark.get(spec.group, 0.0))
        self.line[ticket] = place, spec

    def serve(self, spec: Spec, arrival: float, now: float) -> None:
        if spec.group and not self.rate:
            self.meet(now - 0.5)
        if not self.met:
            return
        group = spec.group
        self.say_share(spec, arrival)
        if self.rate:
            self.time = max(self.time, self.mark.get(group, 0.0))
            self.mark[group] = self.time + spec.weight / self.share.get(group, 1.0)
        else:
            self.mark[group] = now

    def tidy(self) -> None:
        """A share is remembered while its group holds or waits; all of it while there is any such group, or at a rate
        anybody who waits."""
        present = {spec.group for spec in self.holders.values()} | {spec.group for _, spec in self.line.values()}
        for group in [group for group in self.share if group not in present]:
            del self.share[group], self.since[group]
        if not (self.line if self.rate else present - {""}):
            self.met, self.time = False, 0.0
            self.mark.clear()


class Order:
    """All keys, as the events of the scripts have made them."""

    def __init__(self) -> None:
        self.keys: dict[str, Shares] = {}
        self._served = 0
        self._passed: dict[tuple[str, str], list[str]] = {}

    def at(self, spec: Spec) -> Shares:
        return self.keys.setdefault(spec.key, Shares(spec.kind == "rate"))

    def follow(self, world: World, verb: str, now: int, events: list[Event]) -> None:
        """Every grant of this script went to whose turn it was."""
        self._passed = {}
        for event in events:
            message = world.messages[event.ticket]
            spec = spec_at(message, event.key)
            getattr(self, f"_{event.what}")(world, verb, now, message, spec, event)
            self.at(spec).tidy()

    def _join(self, world: World, verb: str, now: int, message: Message, spec: Spec, event: Event) -> None:
        place = divmod(int(event.number), RANK_SPAN)
        self._served += 1
        self.at(spec).join(message.ticket, place, spec, self._served)

    def _leave(self, world: World, verb: str, now: int, message: Message, spec: Spec, event: Event) -> None:
        shares = self.at(spec)
        if message.ticket in shares.line:
            place, _ = shares.line[message.ticket]
            self._passed[message.ticket, spec.key] = self._would_pass(world, now, message, place, spec)
            del shares.line[message.ticket]

    def _enter(self, world: World, verb: str, now: int, message: Message, spec: Spec, event: Event) -> None:
        shares = self.at(spec)
        if message.ticket not in shares.holders:
            self._grant(world, verb, now, message, spec)
            shares.holders[message.ticket] = spec

    def _pass(self, world: World, verb: str, now: int, message: Message, spec: Spec, event: Event) -> None:
        self._grant(world, verb, now, message, spec)

    def _free(self, world: World, verb: str, now: int, message: Message, spec: Spec, event: Event) -> None:
        self.at(spec).holders.pop(message.ticket, None)

    def _grant(self, world: World, verb: str, now: int, message: Message, spec: Spec) -> None:
        """One that comes out of the line passes those whom it would have passed there."""
        assert message.place is not None
        passed = self._passed.pop((message.ticket, spec.key), None)
        if passed is None:
            passed = self._would_pass(world, now, message, message.place, spec)
        assert not passed, f"{verb} let {message} of {spec.group!r} into {spec.key} out of turn, before {passed}"
        self._served += 1
        self.at(spec).serve(spec, message.place[1], self._served)

    def _would_pass(self, world: World, now: int, message: Message, place: Place, spec: Spec) -> list[str]:
        """Those who bar the way; and of one that waits, those who could enter themselves."""
        shares = self.at(spec)
        ahead = shares.ahead(message.ticket, place, spec)
        if world.floating.get(spec.key) and world.floating[spec.key].forgotten:
            return []  # its size has changed on the way
        barring = [ticket for ticket, other in ahead if world.bars(other, spec)]
        if barring or spec.kind == "rate" or message.ticket not in shares.line:
            return barring
        return [t for t, other in ahead if self._could_enter(world, t, other)]

    def _could_enter(self, world: World, ticket: str, spec: Spec) -> bool:
        shares = self.at(spec)
        if spec.key in world.paused or shares.used() + spec.weight > world.size(spec):
            return False
        place, _ = shares.line[ticket]
        return not any(world.bars(other, spec) for _, other in shares.ahead(ticket, place, spec))

    # -- what the store has noted of it -------------------------------------------------------------------

    def agrees(self, view: View) -> None:
        for key, shares in self.keys.items():
            assert sorted(shares.line) == sorted(view.lines.get(key, ())), f"{shares.line} do not wait at {key}"
            assert shares.holders.keys() == view.holders.get(key, {}).keys(), f"{shares.holders} do not hold {key}"
            fair, groups = view.fair(key), view.groups.get(key, {})
            assert (fair is not None) == shares.met, f"{key} has groups: {shares.met}, noted is {fair}"
            if fair is None:
                continue
            noted = {group: (g[1], g[4]) for group, g in groups.items()}
            due = {group: (shares.share[group], shares.since[group]) for group in shares.share if group}
            assert noted == due, f"shares at {key} are noted as {noted}, and are {due}"
            marks = {group: g[2] for group, g in groups.items()} | view.idle.get(key, {}) | {"": fair[1]}
            if shares.rate:
                _same_times(key, shares, fair[0], marks)
            else:
                _same_order(key, shares.mark, marks)


def _same_times(key: str, shares: Shares, time: float, marks: dict[str, float]) -> None:
    assert math.isclose(shares.time, time), f"{key} is at {time}, {shares.time} was due"
    for group in {spec.group for _, spec in shares.line.values()}:
        mark, due = marks.get(group, 0.0), shares.mark.get(group, 0.0)
        assert math.isclose(mark, due, abs_tol=1e-9), f"{group!r} begins at {mark} of {key}, {due} was due"
    for group in shares.mark.keys() | marks.keys():  # one that is not ahead of the key's time is as one never served
        mark, due = (max(time, times.get(group, 0.0)) for times in (marks, shares.mark))
        assert math.isclose(mark, due, abs_tol=1e-9), f"{group!r} was served until {mark} of {key}, {due} was due"


def _same_order(key: str, due: dict[str, float], marks: dict[str, float]) -> None:
    """The groups that were served, the one longest ago first."""
    last, noted = (
        sorted((group for group in times if times[group] > 0), key=times.__getitem__) for times in (due, marks)
    )
    assert noted == last, f"served at {key} were {last}, and noted is {noted}"


def spec_at(message: Message, key: str) -> Spec:
    return next(s for s in message.specs if s.key == key)


def groups_are_counted(world: World, view: View) -> None:
    """What is noted of each group is what its tickets hold and wait for; of groups that do neither, nothing is."""
    held: dict[tuple[str, str], int] = {}
    waits: dict[tuple[str, str], int] = {}
    for key, holders in view.holders.items():
        for ticket, weight in holders.items():
            if group := spec_at(world.messages[ticket], key).group:
                held[key, group] = held.get((key, group), 0) + weight
    for key, line in view.lines.items():
        for ticket in line:
            if group := spec_at(world.messages[ticket], key).group:
                waits[key, group] = waits.get((key, group), 0) + 1
    noted = {(key, group): (g[0], g[3]) for key, groups in view.groups.items() for group, g in groups.items()}
    due = {at: (held.get(at, 0), waits.get(at, 0)) for at in held.keys() | waits.keys()}
    assert noted == due, f"groups are noted as {noted}, and are {due}"
    for key in view.notes:
        fair = view.fair(key)
        is_rate = any(c.lstrip("g").startswith("r") for c in view.classes(key))
        total = sum(n for (k, _), n in held.items() if k == key)
        if fair is not None and not is_rate:
            assert fair[0] == total, f"groups hold {total} of {key}, and {fair[0]} is noted"
    for key in view.idle:
        assert view.fair(key) is not None, f"{key} remembers groups for ever"
