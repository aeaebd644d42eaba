"""The sizes of floating limits in tests: what a refresh function of the project under test looks up.

The size of a key is a file on the stage of its test, which the test writes. Each look-up is noted in the ledger, and
waits at the latch `refresh` while the test says so.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from tests.worker.stage import Entry, Stage

__all__ = ["hold", "look_ups", "set_size", "size_of"]


def set_size(stage: Stage, size: int | str) -> None:
    """Anything but a number makes the refresh fail. A reader finds the old size or the new one, never a part."""
    part = stage.directory / "size.part"
    part.write_text(str(size))
    part.replace(stage.directory / "size")


def hold(stage: Stage) -> None:
    """From now on a refresh does not answer before the latch `refresh` is open."""
    (stage.directory / "hold").touch()


def look_ups(stage: Stage) -> list[Entry]:
    """The begins ("asked") and ends ("answers") of refreshes, in their order."""
    return [entry for entry in stage.entries() if entry.what in ("asked", "answers")]


def size_of(key: str) -> int:
    """The refresh function. It has no app at hand: where the stages are is in the environment of the worker."""
    conf = json.loads(os.environ["LIMITS_TEST_CONF"])
    stage = Stage(Path(conf["stage"]) / key.partition(":")[0])
    stage.note("asked", "refresh", key)
    if (stage.directory / "hold").exists():
        stage.pass_through("refresh")
    text = (stage.directory / "size").read_text()
    stage.note("answers", "refresh", key, said=text)
    return int(text)
