"""How many no-ops a second are run and published: by plain Celery, by our transport, and with a chain of limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from tests.bench.report import Row
from tests.bench.rounds import Spread, spread, take_turns
from tests.bench.transport.fleet import Fleet, Plan
from tests.bench.transport.scale import Scale

__all__ = ["TASKS", "VARIANTS", "plan_of", "throughput"]

VARIANTS = ("plain", "transport", "chain")
TASKS = {"plain": "noop", "transport": "noop", "chain": "chained-noop"}
TENANTS = 10
GOALS = {"transport": 2.0, "chain": 1.5}
"""Times plain, in tasks a second."""
PUBLISH_GOAL = 1.2


def plan_of(variant: str, scale: Scale, pool: str, profile: Path | None = None) -> Plan:
    plain = variant == "plain"
    scheme = "redis" if plain else scale.scheme
    return Plan(scheme, not plain, pool, scale.concurrency, conf=scale.conf, profile=profile)


def throughput(scale: Scale) -> Iterator[Row]:
    for pool in scale.pools:
        yield from _of_pool(scale, pool)


def _of_pool(scale: Scale, pool: str) -> Iterator[Row]:
    with ExitStack() as stack:
        fleets = {name: stack.enter_context(Fleet(plan_of(name, scale, pool))) for name in VARIANTS}
        turns = {name: partial(_turn, fleet, TASKS[name], scale.noops) for name, fleet in fleets.items()}
        got = take_turns(f"throughput, {pool}", turns, rounds=scale.rounds)
    names = {
        "plain": "redis://, no limits",
        "transport": f"{scale.scheme}://, no limits",
        "chain": f"{scale.scheme}://, Concurrency, Concurrency, RateLimit",
    }
    section = f"Running no-ops, {pool} -c {scale.concurrency}, from a queue of {scale.noops:,}"
    for variant, goal in GOALS.items():
        yield Row(section, names[variant], _ratio(got, variant, "run"), "times plain", goal, least=True)
    for variant in GOALS:
        yield Row(section, names[variant], _ratio(got, variant, "run cpu"), "times plain a CPU second", least=True)
    for variant in VARIANTS:
        yield Row(section, names[variant], spread([1e6 / cost for cost in got[f"{variant} run"]]), "tasks/s")
    for variant in VARIANTS:
        yield Row(section, names[variant], spread(got[f"{variant} run cpu"]), "µs of CPU a task, worker and pool")
    section = f"Publishing {scale.noops:,}, call by call, the workers ({pool}) at rest"
    for variant in GOALS:
        yield Row(section, names[variant], _ratio(got, variant, "publish"), "times plain", PUBLISH_GOAL, least=True)
    for variant in GOALS:
        yield Row(section, names[variant], _ratio(got, variant, "publish cpu"), "times plain a CPU second", least=True)
    for variant in VARIANTS:
        yield Row(section, names[variant], spread([1e6 / cost for cost in got[f"{variant} publish"]]), "publishes/s")


def _ratio(got: Mapping[str, list[float]], variant: str, figure: str) -> Spread:
    return spread(got[f"plain {figure}"], got[f"{variant} {figure}"])


def _turn(fleet: Fleet, task: str, times: int) -> dict[str, float]:
    """Costs in microseconds, of one task each."""
    sent, drained = fleet.filled(task, "tenant", times=times, keys=TENANTS)
    return {
        "publish": sent.seconds / times * 1e6,
        "publish cpu": sent.cpu / times * 1e6,
        "run": 1e6 / drained.rate,
        "run cpu": drained.cpu / times * 1e6,
    }
