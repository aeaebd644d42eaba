"""The Lua scripts, joined from `lua/<verb>.lua` and files in `lua/include`.

A line "-- include a b c" in a script stands for those files and all that they need, each once. A file says in its first
lines what it needs before it ("-- needs a b") and what must follow it ("-- with c"). Where an include line stands
matters: what the quick way through a script needs comes first, the rest after it has returned.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from functools import cache
from importlib.resources import files

__all__ = ["VERBS", "Script", "load"]

VERBS = (
    "acknowledge",
    "admit",
    "arrive",
    "audit",
    "beat",
    "cancel",
    "claim",
    "delay",
    "drain",
    "explain",
    "fetch",
    "fetched",
    "forget",
    "leave",
    "pause",
    "publish",
    "refreshed",
    "release",
    "requeue",
    "resize",
    "ring",
    "run",
    "settle",
    "status",
    "sweep",
)

_INCLUDE = re.compile(r"^-- include (.+)$", re.MULTILINE)
_NEEDS = re.compile(r"^-- needs (.+)$", re.MULTILINE)
_WITH = re.compile(r"^-- with (.+)$", re.MULTILINE)
_LUA = files(__package__) / "lua"


class Script:
    """One verb: its whole text, and the digest that Redis knows it by."""

    __slots__ = ("sha", "text", "verb")

    def __init__(self, verb: str, text: str) -> None:
        self.verb = verb
        self.text = text
        self.sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()

    def __repr__(self) -> str:
        return f"<Script {self.verb} {self.sha[:8]}>"


@cache
def load(verb: str) -> Script:
    included: set[str] = set()

    def include(match: re.Match[str]) -> str:
        return "\n".join(text for name in match[1].split() for text in _with_needs(name, included))

    return Script(verb, _INCLUDE.sub(include, (_LUA / f"{verb}.lua").read_text("utf-8")))


def _with_needs(name: str, included: set[str]) -> Iterator[str]:
    """The text of an include file, behind those that it needs and before those that go with it; none of them twice."""
    if name in included:
        return
    included.add(name)
    text = (_LUA / "include" / f"{name}.lua").read_text("utf-8")
    for needed in _named(_NEEDS, text):
        yield from _with_needs(needed, included)
    yield text
    for follower in _named(_WITH, text):
        yield from _with_needs(follower, included)


def _named(directive: re.Pattern[str], text: str) -> list[str]:
    return [name for line in directive.findall(text) for name in line.split()]
