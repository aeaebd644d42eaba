"""Key templates: `"tenant:{tenant_id}"`, parsed once, bound to a task's signature, filled in for each call.

A template reaches a call's arguments by name and nothing else: no attributes, no indexes, no conversions, no
format specs. What it yields is a valid key or a `Refused` that says why not; who asked adds task and limit.

Values are written into a key as they are, so a value that contains the separator can make two calls meet on
one key (`"{a}:{b}"` with `"1:2", "3"` and with `"1", "2:3"`). That makes a limit tighter, never wider.
"""

from __future__ import annotations

import inspect
import sys
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from string import Formatter
from typing import Any, TypeAlias
from uuid import UUID

from celery_limits.errors import Refused, shorten

__all__ = [
    "MAX_KEY_BYTES",
    "KeyOf",
    "Template",
    "call",
    "check_group",
    "check_key",
    "check_plain",
    "name_of",
    "plain_number",
    "text_of",
]

MAX_KEY_BYTES = 200
MAX_TEMPLATE_CHARS = 1000

KeyOf: TypeAlias = Callable[[Sequence[Any], Mapping[str, Any]], str]

# By Unicode category: controls, the two line breaks, lone surrogates, which UTF-8 can't carry, and format characters,
# which are invisible or change the direction of the text, so that two different keys look the same.
_UNFIT = {
    "Cc": "control character",
    "Zl": "control character",
    "Zp": "control character",
    "Cs": "surrogate",
    "Cf": "format character",
}
_HUGE = 10**MAX_KEY_BYTES
_MISSING: Any = object()
_NOWHERE = sys.maxsize


def check_plain(text: str, what: str, max_bytes: int) -> str:
    """Return `text` if it is nonempty, short enough in UTF-8 and free of control and format characters."""
    if text.isascii() and text.isprintable() and 0 < len(text) <= max_bytes:
        return text
    if not text:
        raise Refused(f"{what} is empty")
    if not text.isprintable():
        _check_characters(text, what)
    size = len(text.encode())
    if size > max_bytes:
        raise Refused(f"{what} is {size} bytes long, at most {max_bytes} are allowed: {shorten(text)}")
    return text


def _check_characters(text: str, what: str) -> None:
    for place, character in enumerate(text):
        kind = _UNFIT.get(unicodedata.category(character))
        if kind is not None:
            named = f"U+{ord(character):04X} {unicodedata.name(character, '')}".rstrip()
            raise Refused(f"{what} has the {kind} {named} at {place}: {shorten(text)}")


def check_key(key: str) -> str:
    """Return `key` if it can name a counter in the store."""
    return check_plain(key, "the key", MAX_KEY_BYTES)


def check_group(group: str) -> str:
    """Return `group` if it can name a group of tasks at a key. It is shown to people, so what can't be seen in it is
    refused: two names that look alike would be two groups."""
    check_plain(group, "the group", MAX_KEY_BYTES)
    if not group.isascii() and any(unicodedata.category(letter) == "Cf" for letter in group):
        raise Refused(f"the group has a format character, which can't be seen: {shorten(group)}")
    return group


def plain_number(number: Decimal) -> str:
    """A finite number without exponent or trailing zeros: equal numbers are written alike."""
    text = format(number, "f")
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def text_of(value: object, what: str) -> str:
    """How `value` is written into a key; `what` names it in the error.

    Allowed is what names things and survives Celery's serializers: str, int, UUID, Enum (by its value), date
    and datetime (ISO), Decimal and finite float (equal numbers alike: 1, 1.0 and Decimal("1.00") are one
    key), and bool (`True`/`False`: `"report:{dry_run}"` is a fair wish). None, an empty str, bytes and
    containers are refused: each is far more often a mistake than a name.
    """
    if type(value) is str and value:
        return value
    if type(value) is int and -_HUGE < value < _HUGE:
        return str(value)
    return _text_of_other(value, what)


def _text_of_other(value: object, what: str) -> str:
    if isinstance(value, Enum):
        return text_of(value.value, what)
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, str):
        if not value:
            raise Refused(f"{what} is an empty string, which names nothing")
        return str.__str__(value)
    if isinstance(value, int):
        if -_HUGE < value < _HUGE:
            return int.__repr__(value)
        raise Refused(f"{what} is a number of more than {MAX_KEY_BYTES} digits")
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, (float, Decimal)):
        return _number_text(value, what)
    raise Refused(
        f"{what} is {shorten(value)} ({type(value).__name__}), which can't be part of a key: "
        "use a str, int, UUID, Enum, date or Decimal"
    )


def _number_text(value: float | Decimal, what: str) -> str:
    number = Decimal(float.__repr__(value)) if isinstance(value, float) else value
    if not number.is_finite():
        raise Refused(f"{what} is {value}, which names nothing")
    # Decimal("1e999999") would be written out as a million digits.
    if abs(number.adjusted()) > MAX_KEY_BYTES or len(number.as_tuple().digits) > MAX_KEY_BYTES:
        raise Refused(f"{what} is a number of more than {MAX_KEY_BYTES} digits")
    return plain_number(number)


@dataclass(frozen=True)
class Template:
    """A parsed template: `literals[0] + {names[0]} + literals[1] + ... + literals[-1]`."""

    text: str
    literals: tuple[str, ...]
    names: tuple[str, ...]

    @staticmethod
    @lru_cache(maxsize=1024)
    def parse(text: str) -> Template:
        """Parse `text`, or say in a `Refused` what is wrong with it."""
        if len(text) > MAX_TEMPLATE_CHARS:
            raise Refused(f"the key template is {len(text)} characters long: {shorten(text)}")
        literals, names = _split(text)
        literal = "".join(literals)
        if not names:
            check_key(literal)
        elif literal:
            # Every field adds at least one byte to the key.
            check_plain(literal, "the fixed part of the key template", MAX_KEY_BYTES - len(names))
        return Template(text, literals, names)

    @property
    def shape(self) -> str:
        """The template with its field names taken out. Templates of one shape can yield the same keys."""
        return "{}".join(part.replace("{", "{{").replace("}", "}}") for part in self.literals)

    def bind(self, signature: inspect.Signature) -> KeyOf:
        """A function of a call's args and kwargs that returns the text of the key, not yet checked for length
        and characters; a name that the signature can't supply is refused now."""
        if not self.names:
            constant = self.literals[0]
            return lambda _args, _kwargs: constant
        head, *rest = self.literals
        fields = [
            (_argument(name, signature), f"argument {name!r}", after)
            for name, after in zip(self.names, rest, strict=True)
        ]

        def key_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
            key = head
            for take, what, after in fields:
                key += text_of(take(args, kwargs), what) + after
            return key

        return key_of


def _split(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    literals: list[str] = []
    names: list[str] = []
    pending = ""
    try:
        pieces = list(Formatter().parse(text))
    except ValueError as error:
        raise Refused(f"the key template {shorten(text)}: {error}; write {{{{ and }}}} for braces") from None
    for literal, field, spec, conversion in pieces:
        pending += literal
        if field is None:
            continue
        _check_field(field, spec, conversion, text)
        if names and not pending:
            raise Refused(
                f"the key template {shorten(text)} has {{{names[-1]}}} and {{{field}}} side by side, so that "
                "different calls can make the same key; put a separator such as ':' between them"
            )
        literals.append(pending)
        names.append(field)
        pending = ""
    return (*literals, pending), tuple(names)


def _check_field(field: str, spec: str | None, conversion: str | None, text: str) -> None:
    if "." in field or "[" in field:
        why = "reaches into a value; name an argument, or use a callable for the key"
    elif not field or field.isdigit():
        why = "is positional; name the argument"
    elif conversion is not None or spec:
        why = "has a conversion or format spec; use a callable for the key"
    elif not field.isidentifier():
        why = "is not the name of an argument"
    else:
        return
    raise Refused(f"the field {shorten(field)} of the key template {shorten(text)} {why}")


def _argument(name: str, signature: inspect.Signature) -> Callable[[Sequence[Any], Mapping[str, Any]], Any]:
    """How to find the argument `name` in a call, without the cost of a full `signature.bind`."""
    position, default, positional_only = _find(name, signature)
    missing = f"argument {name!r} is missing from the call, and the key needs it"

    def take(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if position < len(args):
            if name in kwargs and not positional_only:
                raise Refused(f"argument {name!r} is given twice, by position and by name")
            return args[position]
        value = default if positional_only else kwargs.get(name, default)
        if value is _MISSING:
            raise Refused(missing)
        return value

    return take


def _find(name: str, signature: inspect.Signature) -> tuple[int, Any, bool]:
    """Position (or `_NOWHERE`), default (or `_MISSING`), and whether it can be given by position only."""
    takes_any_name = False
    for position, parameter in enumerate(signature.parameters.values()):
        if parameter.kind is parameter.VAR_KEYWORD:
            takes_any_name = True
        if parameter.name != name:
            continue
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            raise Refused(f"the key template names {{{name}}}, which is not one argument but all the others")
        default = _MISSING if parameter.default is parameter.empty else parameter.default
        place = _NOWHERE if parameter.kind is parameter.KEYWORD_ONLY else position
        return place, default, parameter.kind is parameter.POSITIONAL_ONLY
    if takes_any_name:
        return _NOWHERE, _MISSING, False
    known = ", ".join(signature.parameters) or "none"
    raise Refused(f"the key template names {{{name}}}, not an argument of the task; its arguments: {known}")


def name_of(function: object) -> str:
    """`module:qualname` of a callable, for messages."""
    qualname = getattr(function, "__qualname__", None) or type(function).__qualname__
    return f"{getattr(function, '__module__', None) or '?'}:{qualname}"


def call(function: Callable[..., Any], what: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call a user's function as the task's body would be called; what it raises becomes a `Refused`."""
    try:
        return function(*args, **kwargs)
    except Exception as error:
        raise Refused(f"the callable {name_of(function)} for the {what} raised {shorten(error)}") from error
