"""The plan: what is published and what is broken, and when. A function of the profile and the seed alone."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

from tests.chaos.fleet import LEASE
from tests.chaos.world import LINKS

__all__ = ["FAULTS", "PROFILES", "Call", "Fault", "Plan", "Profile", "faults_on", "make_plan"]


@dataclass(frozen=True)
class Profile:
    """Times are seconds. `rate` is calls a second, `pause` the mean time between two faults; a worker is left in peace
    for at least `calm`, or it would never get to work. `haste`: by how much bodies are shorter than else."""

    name: str
    seconds: float
    pools: tuple[str, ...]
    rate: float
    pause: float
    calm: float
    first: float = 2.0
    haste: float = 1.0

    def at_rate(self, rate: float) -> Profile:
        """So many calls a second, whose bodies are so much shorter that as many run at once."""
        return replace(self, rate=rate, haste=rate / self.rate)


PROFILES = {
    "smoke": Profile("smoke", 28, ("prefork", "threads", "prefork"), 8, 1.6, 0.5),
    "standard": Profile("standard", 600, ("prefork", "threads", "prefork", "threads"), 5, 2.0, 3.0),
    "long": Profile("long", 3600, ("prefork", "threads", "prefork", "threads"), 5, 2.2, 3.0),
}


@dataclass(frozen=True)
class Call:
    """One call, or one member of a group, chord or line. `together` names those that are published as one."""

    at: float
    name: str
    task: str
    names: dict[str, str]
    weight: int = 1
    seconds: float = 0.1
    ending: str = "return"
    priority: int | None = None
    delay: float | None = None
    expires: float | None = None
    limit: float | None = None
    revoke: tuple[float, bool] | None = None
    members: tuple[Call, ...] = ()
    shape: str = "call"
    alien: str = ""
    """What nobody understands about its limits."""

    @property
    def late(self) -> bool:
        return self.task.startswith("late")

    @property
    def retries(self) -> int:
        return int(self.ending[5:]) if self.ending.startswith("retry") else 0

    @property
    def line(self) -> str | None:
        return self.names.get("line")

    def everyone(self) -> list[Call]:
        return [self, *self.members] if self.shape != "group" else list(self.members)


@dataclass(frozen=True)
class Fault:
    at: float
    kind: str
    whom: float
    """Between 0 and 1: which of those that there are when it is time."""
    seconds: float = 0.0


@dataclass(frozen=True)
class Plan:
    profile: Profile
    seed: int
    calls: list[Call] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    on: str = "redis"


def _short(rng: random.Random) -> float:
    return rng.uniform(0.2, 0.4) * LEASE


def _beyond(rng: random.Random) -> float:
    """Longer than the lease, by enough that it is lost."""
    return rng.uniform(1.5, 2.2) * LEASE


FAULTS: dict[str, tuple[int, Any]] = {
    # kind: how often beside the others, and how long it lasts
    "kill": (8, None),
    "kill child": (14, None),
    "kill all": (1, None),
    "stop": (3, _beyond),
    "stop briefly": (2, _short),
    "term": (3, None),
    "quit": (2, None),
    "term twice": (2, None),
    "clock": (2, None),
    "redis killed": (2, _short),
    "redis paused": (1, _short),
    "redis away": (1, _beyond),
    "redis clock": (2, None),
    "cut": (6, None),
    "cut off": (2, _beyond),
    "half-open": (2, _beyond),
    "half-open briefly": (2, _short),
    "resize": (5, _beyond),
    "pause": (3, _beyond),
}


_MOMENT = 0.1

ON_RABBIT = {
    "rabbit killed": (1, _short),
    "rabbit restarted": (1, _short),
    "rabbit closed": (4, lambda _: _MOMENT),  # felt until it is done: the command takes a while
}
ON_SENTINEL = {"failover": (4, lambda _: _MOMENT)}
WIRES = ("cut", "cut off", "half-open", "half-open briefly")


def faults_on(site: str) -> dict[str, tuple[int, Any]]:
    """What can be broken there."""
    if site == "rabbitmq":
        return {**FAULTS, **ON_RABBIT}
    if site == "sentinel":
        without = (*WIRES, "redis killed", "redis paused", "redis away", "redis clock")
        return {**{kind: how for kind, how in FAULTS.items() if kind not in without}, **ON_SENTINEL}
    return FAULTS


ALIEN = ("older", "newer", "unknown kind")
"""Headers of another version than the one that is deployed."""


def make_plan(
    profile: Profile, seed: int, seconds: float | None = None, on: str = "redis", only: tuple[str, ...] = ()
) -> Plan:
    """`seconds`: instead of the profile's; `only`: these faults and no others."""
    profile = replace(profile, seconds=seconds or profile.seconds)
    rng = random.Random(f"{profile.name} {seed}")
    kinds = {kind: how for kind, how in faults_on(on).items() if kind in only or not only}
    return Plan(profile, seed, _load(rng, profile), _trouble(rng, profile, kinds), on)


# -- the load ------------------------------------------------------------------------------------------------------


def _load(rng: random.Random, profile: Profile) -> list[Call]:
    calls: list[Call] = []
    at, published = 0.0, 0
    while at < profile.seconds:
        call = _hurried(_item(rng, at, f"c{len(calls)}"), profile.haste)
        calls.append(call)
        published += max(1, len(call.everyone()))
        at = published / profile.rate * rng.uniform(0.9, 1.1)
    return calls


def _hurried(call: Call, haste: float) -> Call:
    """Not one that is to run for a certain time: until it is too late, or others are published."""
    if haste == 1 or call.limit is not None or call.shape == "line":
        return call
    members = tuple(_hurried(member, haste) for member in call.members)
    return replace(call, seconds=round(call.seconds / haste, 3), members=members)


def _item(rng: random.Random, at: float, name: str) -> Call:
    chance = rng.random()
    if chance < 0.03:
        return _chord(rng, at, name)
    if chance < 0.05:
        return Call(at, name, "", {}, members=_members(rng, at, name, rng.choice(("early", "late"))), shape="group")
    if chance < 0.07:
        return _line(rng, at, name)
    return _single(rng, at, name)


def _single(rng: random.Random, at: float, name: str) -> Call:
    call = _body(rng, at, name, rng.choice(("early", "late")), rng.choice((0, 1, 1, 2, 2, 3, 4, 4)))
    chance = rng.random()
    if chance < 0.06:
        return replace(call, delay=rng.uniform(0.5, 2 * LEASE))
    if chance < 0.10:
        return replace(call, expires=rng.uniform(0.5, 2 * LEASE))
    if chance < 0.15:
        return replace(call, revoke=(rng.uniform(0, 4), rng.random() < 0.5), seconds=rng.uniform(0.1, 2))
    if chance < 0.22:
        return replace(call, ending=f"retry{rng.randint(1, 2)}")
    if chance < 0.25:
        return replace(call, limit=1, seconds=rng.uniform(1.5, 2.5))
    if chance < 0.29:
        return replace(call, ending="fail")
    if chance < 0.40:
        return replace(call, priority=rng.choice((0, 3, 6, 9)))
    if chance < 0.45 and call.names:
        return replace(call, alien=rng.choice(ALIEN))
    return call


def _body(rng: random.Random, at: float, name: str, acks: str, links: int) -> Call:
    names = {kind: _name(rng, kind) for kind in LINKS[:links]}
    weight = rng.choice((1, 1, 2, 3)) if "depot" in names else 1
    seconds = rng.uniform(0.02, 0.4) if rng.random() < 0.95 else rng.uniform(1, LEASE)
    return Call(at, name, f"{acks}.{links or 'free'}", names, weight, round(seconds, 2))


def _name(rng: random.Random, kind: str) -> str:
    """Of tenants a few have half of all the work."""
    many = {"tenant": 300, "region": 20, "depot": 6, "api": 6}[kind]
    return f"{rng.randrange(8) if kind == 'tenant' and rng.random() < 0.5 else rng.randrange(many)}"


def _members(rng: random.Random, at: float, name: str, acks: str) -> tuple[Call, ...]:
    return tuple(_body(rng, at, f"{name}.{n}", acks, rng.choice((1, 2, 3))) for n in range(rng.randint(3, 6)))


def _chord(rng: random.Random, at: float, name: str) -> Call:
    """Of tasks that are acknowledged late: it must complete whoever is killed."""
    members = _members(rng, at, name, "late")
    return Call(at, name, "late.gather", {"tenant": _name(rng, "tenant")}, members=members, shape="chord")


def _line(rng: random.Random, at: float, name: str) -> Call:
    """One that runs for a while and others that wait for it, in their order."""
    names = {"line": name}
    members = tuple(Call(at, f"{name}.{n}", "late.line", names) for n in range(rng.randint(3, 5)))
    return Call(at, name, "late.line", names, seconds=rng.uniform(2, LEASE), members=members, shape="line")


# -- the trouble -----------------------------------------------------------------------------------------------------


def _trouble(rng: random.Random, profile: Profile, kinds: dict[str, tuple[int, Any]]) -> list[Fault]:
    """Each kind once, if there is time, and then as it comes; the deploy in the middle."""
    faults = [Fault(profile.seconds / 2, "deploy", 0.0)]
    todo: list[str] = []
    at = profile.first
    while at < profile.seconds:
        if not todo:
            todo = [kind for kind, (share, _) in kinds.items() for _ in range(share)]
            rng.shuffle(todo)
            if len(faults) == 1:
                first = rng.sample(list(kinds), len(kinds))
                todo += reversed(first)
        kind = todo.pop()
        lasting = kinds[kind][1]
        faults.append(Fault(at, kind, rng.random(), lasting(rng) if lasting else 0.0))
        at += rng.uniform(0.3, 1.7) * profile.pause
    return sorted(faults, key=lambda fault: fault.at)
