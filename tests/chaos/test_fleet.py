"""The processes of the chaos run."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.chaos.fleet import Fleet, scratch


def test_one_that_was_told_to_go_feels_its_wire_until_it_has_ended() -> None:
    with scratch() as directory, Fleet(Path(directory), ("threads",)) as fleet:
        (place,) = fleet.places
        before = place.worker
        assert before is not None
        fleet.replace(place)
        assert fleet.behind_the_wire_of(place) == ["w1.2@chaos", "w1.1@chaos"]
        before.signal(signal.SIGTERM)
        before.wait_gone()
        assert fleet.behind_the_wire_of(place) == ["w1.2@chaos"]
