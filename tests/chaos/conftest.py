"""A tale is a history that a test writes, and each violation that is found in it must show by which lines."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.chaos.checker import check_all
from tests.chaos.history import read
from tests.chaos.tale import Tale


@pytest.fixture
def tale() -> Iterator[Tale]:
    tale = Tale()
    yield tale
    for check in check_all(read(tale.lines)):
        assert all(violation.lines for violation in check.violations), "a violation shows what it was seen by"
