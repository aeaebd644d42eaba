"""The model can fail: each seeded bug is found, and without one nothing is."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from redis import Redis

from celery_limits.store.scripts import load
from tests.store.model_cast import OF_GROUPS
from tests.store.model_machine import machine_on
from tests.store.mutations import MUTATIONS, OF_SHARES, Mutation

# Not shortened, since nobody will read the story: that one was found is all that is asked.
SETTINGS = settings(
    max_examples=500,
    stateful_step_count=50,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_seeded_bug_is_caught(redis: Redis, mutation: Mutation) -> None:
    with pytest.raises(AssertionError, match=mutation.found):
        run_state_machine_as_test(machine_on(redis, mutation.scripts()), settings=SETTINGS)


@pytest.mark.timeout(900)  # the rarest takes a thousand stories and more
@pytest.mark.parametrize("mutation", OF_SHARES, ids=lambda mutation: mutation.name)
def test_an_unfair_store_is_caught(redis: Redis, mutation: Mutation) -> None:
    stories = settings(SETTINGS, max_examples=3000)
    with pytest.raises(AssertionError, match=mutation.found):
        run_state_machine_as_test(machine_on(redis, mutation.scripts(), OF_GROUPS), settings=stories)


def test_nothing_is_caught_where_there_is_no_bug(redis: Redis) -> None:
    run_state_machine_as_test(machine_on(redis, load), settings=settings(SETTINGS, max_examples=50))
