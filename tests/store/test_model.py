"""Random stories of workers, brokers and clocks, told to a real store, against a plain model of the guarantees.

`LIMITS_MODEL_EXAMPLES` says how many stories (2000 unless told), `LIMITS_MODEL_SEED` which ones; without a seed they
are the same in every run.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.redis_server import RedisServer, find_servers
from tests.store.model_machine import machine_on

EXAMPLES = int(os.environ.get("LIMITS_MODEL_EXAMPLES", "2000"))
SEED = int(os.environ.get("LIMITS_MODEL_SEED", "0"))
EXAMPLES_ON_OTHERS = 100
STEPS = 50
PARTS = 10
"""The stories are told in parts, each from a seed of its own, so that two cores can share them."""
SHORT = 1
"""Parts that every run of the tests has; the others are long."""


@pytest.mark.timeout(0 if EXAMPLES > 2000 else 300)
@pytest.mark.parametrize(
    "part", [*range(SHORT), *(pytest.param(part, marks=pytest.mark.long) for part in range(SHORT, PARTS))]
)
def test_model(redis_server: RedisServer, part: int) -> None:
    """The first server found gets them all; what others might do differently shows in few."""
    first = redis_server.binary == next(iter(find_servers().values()))
    examples = EXAMPLES if first else min(EXAMPLES, EXAMPLES_ON_OTHERS)
    run_state_machine_as_test(
        seed(SEED * PARTS + part)(machine_on(redis_server.client())),
        settings=settings(
            max_examples=-(-examples // PARTS),
            stateful_step_count=STEPS,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
        _min_steps=STEPS,  # else many a story ends early, and it is the long ones that find things
    )
