"""How a change to a class of Celery, kombu or billiard is declared, checked and applied.

    @patch("celery.app.amqp:AMQP._create_task_sender", takes="self", why="…")
    def stamp(original, amqp): ...

`apply(module)` applies the patches of a module. It refuses where the function does not take what it took, and does
nothing where the patch is applied already. `python -m celery_limits.patches` prints them all as the table of
docs/design.md.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple

from celery import __version__ as celery_version

from celery_limits.errors import LimitError

__all__ = ["Patch", "UnknownCelery", "apply", "patch", "patches_of"]

_MARK = "__limits_patch__"
_TARGET = re.compile(r"(?P<module>[\w.]+):(?P<path>[\w.]+)(\[(?P<item>\w+)\])?")
_declared: dict[str, list[Patch]] = {}


class UnknownCelery(LimitError):
    """A function of Celery that limits replace takes other arguments now: this Celery is not supported."""


class Patch(NamedTuple):
    target: str
    """`module:Class.method`, `module:function`, or `module:mapping[item]`."""
    takes: tuple[str, ...]
    """The names of its first parameters."""
    why: str
    celery: str
    """The versions of Celery that need it."""
    upstream: str
    """The issue of Celery or kombu that would make it unnecessary."""
    replacement: Callable[..., Any]
    """Called with the original, then the arguments of each call."""

    def owner(self) -> tuple[Any, str, bool]:
        """The object that has the function, the name there, and whether the object is a mapping."""
        match = _TARGET.fullmatch(self.target)
        assert match is not None, self.target
        *path, name = match["path"].split(".")
        owner: Any = import_module(match["module"])
        for part in path:
            owner = getattr(owner, part)
        if match["item"]:
            return getattr(owner, name), match["item"], True
        return owner, name, False

    def current(self) -> Callable[..., Any]:
        owner, name, is_mapping = self.owner()
        found: Callable[..., Any] = owner[name] if is_mapping else getattr(owner, name)
        return found

    @property
    def is_applied(self) -> bool:
        return getattr(self.current(), _MARK, None) == self.target

    def check(self) -> None:
        parameters = inspect.signature(self.current()).parameters
        takes_any = any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters.values())
        found = tuple(parameters)[: len(self.takes)]
        if found != self.takes and not takes_any:
            raise UnknownCelery(
                f"{self.target} of Celery {celery_version} takes ({', '.join(parameters)}), and celery_limits was made "
                f"for ({', '.join(self.takes)}, ...): install a version of celery_limits that supports this Celery"
            )

    def apply(self) -> None:
        if self.is_applied:
            return
        self.check()
        original, replacement = self.current(), self.replacement

        @functools.wraps(original)
        def patched(*args: Any, **kwargs: Any) -> Any:
            return replacement(original, *args, **kwargs)

        setattr(patched, _MARK, self.target)
        owner, name, is_mapping = self.owner()
        if is_mapping:
            owner[name] = patched
        else:
            setattr(owner, name, patched)


def patch(
    target: str, *, takes: str, why: str, celery: str = "all", upstream: str = "not reported"
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declares the decorated function as the replacement of `target`. `takes` names the parameters of the target."""

    def declare(replacement: Callable[..., Any]) -> Callable[..., Any]:
        found = Patch(target, tuple(takes.split()), why, celery, upstream, replacement)
        _declared.setdefault(replacement.__module__, []).append(found)
        return replacement

    return declare


def patches_of(module: ModuleType) -> tuple[Patch, ...]:
    return tuple(_declared.get(module.__name__, ()))


def apply(module: ModuleType) -> None:
    """Applies the patches of a module, each once."""
    for found in patches_of(module):
        found.apply()
