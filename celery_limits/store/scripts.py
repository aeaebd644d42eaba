"""The Lua scripts, joined from `lua/<verb>.lua` and the files in `lua/include` that it names.

A line "-- include a b c" stands for those files, each once and in that order. Where the line stands matters: what the
quick way through a script needs comes first, the rest after it has returned.
"""

from __future__ import annotations

import hashlib
import re
from functools import cache
from importlib.resources import files

__all__ = ["VERBS", "Script", "load"]

VERBS = (
    "acknowledge",
    "admit",
    "audit",
    "beat",
    "cancel",
    "claim",
    "explain",
    "fetch",
    "leave",
    "pause",
    "publish",
    "refreshed",
    "release",
    "requeue",
    "resize",
    "ring",
    "settle",
    "status",
    "sweep",
)

_INCLUDE = re.compile(r"^-- include (.+)$", re.MULTILINE)
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
    def include(match: re.Match[str]) -> str:
        return "\n".join((_LUA / "include" / f"{name}.lua").read_text("utf-8") for name in match[1].split())

    return Script(verb, _INCLUDE.sub(include, (_LUA / f"{verb}.lua").read_text("utf-8")))
