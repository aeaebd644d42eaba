"""A few hundred stories hold every guarantee, are the same whenever they are told, and fail where there is a bug, be
that in a script of the store or in the worker."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.redis_server import RedisServer
from tests.simulation.core_bugs import CORE_BUGS, CoreBug
from tests.simulation.runner import play, replay
from tests.simulation.seeded_bugs import SEEDED_BUGS, SeededBug
from tests.simulation.trip import Stage

PARTS = 6
SEEDS = 50
"""In each part; parts, so that two cores can share them."""


WITHIN = 500
"""Seeds within which a bug is caught."""


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    """One is enough: what servers do differently shows in the tests of the store."""
    with RedisServer() as server:
        yield server


@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(PARTS))
def test_stories_hold_every_guarantee(server: RedisServer, part: int) -> None:
    stage = Stage(server.client(socket_timeout=None))
    tally = play(range(part * SEEDS, (part + 1) * SEEDS), stage)
    stage.close()
    assert tally.violations == {}
    assert tally.bodies > tally.seeds


@pytest.mark.timeout(600)
@pytest.mark.parametrize("bug", SEEDED_BUGS, ids=lambda bug: bug.mutation.name)
def test_a_seeded_bug_is_caught(server: RedisServer, bug: SeededBug) -> None:
    """Starting close to the first seed that catches it, so that it takes no time. Where a change of the scripts has
    changed the stories it may take longer; docs/simulation.md has the figures."""
    stage = Stage(server.client(socket_timeout=None), bug.mutation.scripts())
    tally = play(range(max(0, bug.seed - 2), bug.seed + WITHIN), stage, stop_at_first=True)
    stage.close()
    said = next(iter(tally.violations.values()), "")
    assert re.search(bug.found, said.partition(": ")[2]), f"in {tally.seeds} seeds: {said or 'nothing'}"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("bug", CORE_BUGS, ids=lambda bug: bug.name)
def test_a_bug_seeded_into_the_worker_is_caught(server: RedisServer, bug: CoreBug) -> None:
    stage = Stage(server.client(socket_timeout=None))
    with bug.seeded():
        tally = play(range(max(0, bug.seed - 2), bug.seed + WITHIN), stage, stop_at_first=True)
    stage.close()
    said = next(iter(tally.violations.values()), "")
    assert re.search(bug.found, said.partition(": ")[2]), f"in {tally.seeds} seeds: {said or 'nothing'}"


def test_a_seed_is_the_same_story_whenever_it_is_told() -> None:
    first, second = list[str](), list[str]()
    assert replay(7, first.append) is None
    assert replay(7, second.append) is None
    assert first == second
    assert len(first) > 50
