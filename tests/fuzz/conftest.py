"""The workers of `tests/worker`, and their fixtures, for the fuzzing that needs whole workers."""

from __future__ import annotations

from tests.worker.conftest import (  # noqa: F401
    all_workers,
    app_and_conf,
    broker,
    node,
    pytest_runtest_makereport,
    scene,
    stages,
    workers,
)
