"""What the tests of exits have in common: a task that holds the only slot of a key, and others in line behind it."""

from __future__ import annotations

from typing import Any

from tests.waiting import wait_until
from tests.worker.harness import Scene

__all__ = ["PROMPT", "Line"]

PROMPT = 30.0
"""Seconds in which the next one starts. Less than between two beats, so it was a release that let it start."""


class Line:
    """A first task that holds the key, and two behind it."""

    def __init__(self, scene: Scene, task: str, how: str = "return", **options: Any) -> None:
        self.scene = scene
        self.first = scene.send(task, "first", how, **options)
        scene.wait_started("first")
        self.second = scene.send("early", "second")
        scene.wait_parked(1)
        self.third = scene.send("early", "third")
        scene.wait_parked(2)

    def one_goes_on(self, within: float = PROMPT, *, in_turn: bool = True) -> None:
        """Exactly one more starts; then all come to their end.

        `in_turn=False` where the second may have been on its way into the very worker that went.
        """
        scene = self.scene
        names = ("second",) if in_turn else ("second", "third")
        wait_until(lambda: any(map(scene.stage.starts, names)), f"one of {names} starts", within=within)
        holders = [party.task_id for party in scene.limits.status(scene.key).holders]
        begun = [entry.task_id for entry in scene.stage.starts() if entry.name in ("second", "third")]
        assert holders == begun
        scene.stage.open_all()
        assert self.second.get() is None
        assert self.third.get() is None
