"""Random stories of workers, brokers and clocks, told to a real store, against a plain model of the guarantees.

`LIMITS_MODEL_EXAMPLES` says how many stories of each cast (1000 unless told), `LIMITS_MODEL_SEED` which ones; without a
seed they are the same in every run.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.redis_server import RedisServer, find_servers
from tests.store.model_cast import OF_GROUPS, THEMES, Chain
from tests.store.model_machine import machine_on

EXAMPLES = int(os.environ.get("LIMITS_MODEL_EXAMPLES", "1000"))
SEED = int(os.environ.get("LIMITS_MODEL_SEED", "0"))
EXAMPLES_ON_OTHERS = 100
STEPS = 50
PARTS = 20
"""The stories are told in parts, each from a seed of its own, so that two cores can share them."""
SHORT = 2
"""Parts that every run of the tests has; the others are long."""


IN_PARTS = pytest.mark.parametrize(
    "part", [*range(SHORT), *(pytest.param(part, marks=pytest.mark.long) for part in range(SHORT, PARTS))]
)


@pytest.mark.timeout(0 if EXAMPLES > 1000 else 900)
@IN_PARTS
def test_model(redis_server: RedisServer, part: int) -> None:
    tell(redis_server, THEMES, part)


@pytest.mark.timeout(0 if EXAMPLES > 1000 else 900)
@IN_PARTS
def test_model_of_groups(redis_server: RedisServer, part: int) -> None:
    """Each grant goes to the group whose turn it is, at its own moment, whichever script makes it."""
    tell(redis_server, OF_GROUPS, part)


def tell(redis_server: RedisServer, themes: list[list[Chain]], part: int) -> None:
    """The first server found gets them all; what others might do differently shows in few."""
    first = redis_server.binary == next(iter(find_servers().values()))
    examples = EXAMPLES if first else min(EXAMPLES, EXAMPLES_ON_OTHERS)
    run_state_machine_as_test(
        seed(SEED * PARTS + part)(machine_on(redis_server.client(), themes=themes)),
        settings=settings(
            max_examples=-(-examples // PARTS),
            stateful_step_count=STEPS,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
        _min_steps=STEPS,  # else many a story ends early, and it is the long ones that find things
    )
