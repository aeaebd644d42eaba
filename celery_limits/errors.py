"""What can go wrong with limits before the store is involved.

Every error a user can meet here is a `LimitError`, and its message quotes the task, the limit and the value
and says what to do. Errors of the store itself live with the store.
"""

from __future__ import annotations

import reprlib

__all__ = [
    "CorruptChain",
    "DeadlockError",
    "DeclarationError",
    "LimitError",
    "Refused",
    "ResolutionError",
    "UnreadableMessage",
    "shorten",
]


class LimitError(Exception):
    """Base of every error that celery_limits raises on purpose."""


class DeclarationError(LimitError, ValueError):
    """A limit, or a task's list of limits, that can't work. Raised when it is declared."""


class ResolutionError(LimitError, ValueError):
    """A key, limit, weight, rate or cost that can't be worked out for one call. Nothing was published."""


class CorruptChain(LimitError, ValueError):
    """A `limits` header that can't be understood. Its task fails; it never runs unlimited."""


class UnreadableMessage(LimitError, ValueError):
    """A message of which a property, a header or the body is not of the kind that it has to be. Its task fails."""


class DeadlockError(DeclarationError):
    """Declared chains that take the same keys in opposite orders, and so could wait for each other."""


class Refused(ValueError):
    """A bare reason, for use inside this package: whoever knows the task and the limit adds them and raises
    one of the errors above. It is a ValueError so that pydantic validators may raise it too."""


_MAX_QUOTE = 80

_quoting = reprlib.Repr()
_quoting.maxstring = _quoting.maxother = _quoting.maxlong = _MAX_QUOTE
_quoting.maxlevel = 3
_quoting.maxdict = _quoting.maxlist = _quoting.maxtuple = _quoting.maxset = _quoting.maxfrozenset = 4


def shorten(value: object) -> str:
    """The repr of `value`, cut to a length fit for a message. Never raises, whatever the repr does."""
    try:
        text = _quoting.repr(value)
    except Exception:  # a broken __repr__, or an int of more digits than Python will print
        text = f"<{type(value).__name__}>"
    return text if len(text) <= _MAX_QUOTE else f"{text[: _MAX_QUOTE - 3]}..."
