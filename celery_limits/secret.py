"""URLs that may have a password in them: shown without it, and carried so that nobody shows it by mistake.

An error reporter prints the local variables of every function that an error has passed through. So a URL is a
`SecretUrl` wherever it is kept, and its text only ever the argument of the function that needs it.
"""

from __future__ import annotations

import re
from typing import Any

from pydantic import SecretStr

__all__ = ["SecretUrl", "bare", "masked", "masked_info"]

_ALTERNATES = re.compile(r";(?=[\w.+-]+://)")
_CREDENTIALS = re.compile(r"^([\w.+-]*:/*)?(.*)@", re.DOTALL)
_SECRET_OPTION = re.compile(r"([?&][^=&]*(?:password|secret|token)[^=&]*=)[^&]*", re.IGNORECASE)
_SECRET_NAME = re.compile(r"pass(?:word|phrase|wd)|secret|token|credential", re.IGNORECASE)
MASK = "**"


class SecretUrl(SecretStr):
    """Neither printed, dumped as JSON nor pickled with its password. A copy within the process is the same object."""

    def __reduce__(self) -> Any:
        return type(self), (masked(self),)

    def __copy__(self) -> SecretUrl:
        return self

    def __deepcopy__(self, memo: Any) -> SecretUrl:
        return self


def masked(url: str | SecretStr) -> str:
    """The URL, or several of them, as it may be shown. Never raises: what is shown is often what could not be read."""
    text = url.get_secret_value() if isinstance(url, SecretStr) else url
    return ";".join(_masked(part) for part in _ALTERNATES.split(text))


def _masked(url: str) -> str:
    """All before the last @ is taken for credentials, since a password may have any character in it."""

    def hide(match: re.Match[str]) -> str:
        user, colon, _ = match[2].partition(":")
        return f"{match[1] or ''}{user}:{MASK}@" if colon else f"{match[1] or ''}{MASK}@"

    return _SECRET_OPTION.sub(rf"\1{MASK}", _CREDENTIALS.sub(hide, url))


def masked_info(value: Any, name: object = "") -> Any:
    """What a connection says of itself, as it may be sent to whoever asks a worker: without passwords, at any depth."""
    if isinstance(name, str) and _SECRET_NAME.search(name) and value:
        return MASK
    if isinstance(value, dict):
        return {key: masked_info(inner, key) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [masked_info(inner) for inner in value]
    return masked(value) if isinstance(value, str) and "://" in value else value


def bare(error: BaseException) -> BaseException:
    """The error, and what led to it, without frames: redis-py's have the password in local variables while a
    connection logs in, and the text says all that there is to know."""
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        one = pending.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        one.__traceback__ = None
        pending += [one.__cause__, one.__context__]
    return error
