"""Actors on a stage: each in its own thread, one moving at a time, held at a gate before and after every script call.

A story is a function of a store. `Stage.step` lets one actor through one call, `Stage.crash` drops it where it stands;
`every_way` plays a scene once for each way its choices can fall, so that a test sees all merges, or all crash points,
without listing them. The calls themselves are made by the test's thread, on the store of the test.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from celery_limits.store import Store
from celery_limits.store.script_runner import Arg
from celery_limits.store.scripts import Script

__all__ = ["Choices", "Stage", "every_way"]

T = TypeVar("T")
Story = Callable[[Store], object]


class Crash(BaseException):
    """Ends an actor in the middle of its story, as SIGKILL would: nothing of ours catches it."""


class Choices:
    """What a scene asks whenever it could go on in several ways."""

    def __init__(self, path: list[int]) -> None:
        self._path = path
        self._taken: list[tuple[int, int]] = []

    def pick(self, options: Sequence[T]) -> T:
        step = len(self._taken)
        index = self._path[step] if step < len(self._path) else 0
        self._taken.append((index, len(options)))
        return options[index]

    def next_path(self) -> list[int] | None:
        """The way that comes after this one; None when this was the last."""
        taken = list(self._taken)
        while taken:
            index, count = taken.pop()
            if index + 1 < count:
                return [i for i, _ in taken] + [index + 1]
        return None


def every_way(scene: Callable[[Choices], object]) -> int:
    """Plays the scene once for every way its choices can fall; how many there were."""
    path: list[int] | None = []
    plays = 0
    while path is not None:
        choices = Choices(path)
        scene(choices)
        plays += 1
        path = choices.next_path()
    return plays


class _GatedStore(Store):
    """A store whose calls wait until the stage makes them."""

    def __init__(self, store: Store, actor: _Actor) -> None:
        super().__init__(store.client, store.namespace, store.policy)
        self._actor, self._real = actor, store
        self._call: Any = self._ask  # for `Post`, which calls scripts by itself

    def _run(self, verb: str, *args: Any) -> Any:
        return self._actor.ask(verb, lambda: self._real._run(verb, *args))

    def _ask(self, script: Script, _: Arg, *args: Arg) -> Any:
        now: Arg = self._real._clock() if self._real._clock else ""
        return self._actor.ask(script.verb, lambda: self._real._call(script, now, *args))


class _Actor:
    """One thread. It and the stage take turns: `_its_turn` and `_our_turn` are never both up."""

    def __init__(self, store: Store, story: Story) -> None:
        self.gate: str | None = "the curtain"
        self.error: Exception | None = None
        self._store = store
        self._request: Callable[[], Any] | None = None
        self._reply: Any = None
        self._crashed = False
        self._its_turn, self._our_turn = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._play, args=(story,), daemon=True)
        self._thread.start()

    def _play(self, story: Story) -> None:
        self._its_turn.acquire()
        try:
            if not self._crashed:
                story(_GatedStore(self._store, self))
        except Crash:
            pass
        except Exception as error:
            self.error = error
        self.gate = None
        self._our_turn.release()

    def ask(self, verb: str, request: Callable[[], Any]) -> Any:
        self._request = request
        self._wait_at(f"before {verb}")
        self._wait_at(f"after {verb}")
        return self._reply

    def _wait_at(self, gate: str) -> None:
        self.gate = gate
        self._our_turn.release()
        self._its_turn.acquire()
        if self._crashed:
            raise Crash

    def open_gate(self) -> None:
        """Lets it go on to its next gate, or to its end. The call is made between its two gates."""
        if self.gate is not None and self.gate.startswith("before") and self._request and not self._crashed:
            self._reply = self._request()
        self._its_turn.release()
        self._our_turn.acquire()
        if self.error is not None:
            raise self.error

    def crash(self) -> None:
        self._crashed = True
        self.open_gate()
        self._thread.join()


class Stage:
    """Named actors, each held at its first gate. Use as a context manager: whoever has not ended is dropped."""

    def __init__(self, store: Store, **stories: Story) -> None:
        self._actors = {name: _Actor(store, story) for name, story in stories.items()}
        for actor in self._actors.values():
            actor.open_gate()

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *_: object) -> None:
        for name in self.playing():
            self.crash(name)

    def playing(self) -> list[str]:
        return [name for name, actor in self._actors.items() if actor.gate is not None]

    def gate_of(self, name: str) -> str | None:
        return self._actors[name].gate

    def open_gate(self, name: str) -> None:
        self._actors[name].open_gate()

    def step(self, name: str) -> None:
        """Through one whole call, to the gate before the next."""
        self.open_gate(name)
        if (self.gate_of(name) or "").startswith("after"):
            self.open_gate(name)

    def crash(self, name: str) -> None:
        self._actors[name].crash()

    def play(self, choices: Choices, *, after_each: Callable[[], object] = lambda: None) -> None:
        """All actors to their ends, in the order that the choices say."""
        while names := self.playing():
            self.step(choices.pick(names))
            after_each()

    def play_until_crash(self, choices: Choices, name: str) -> str | None:
        """One actor alone, which crashes at a gate of the choices' choosing; at which, or None if it came through."""
        while (gate := self.gate_of(name)) is not None:
            if choices.pick(("go on", "crash")) == "crash":
                self.crash(name)
                return gate
            self.open_gate(name)
        return None
