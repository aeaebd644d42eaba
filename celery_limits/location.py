"""Where the store is: the Redis named by `limits_store_url`, or the broker where that is one.

Passwords never leave here except into the client.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from celery.exceptions import ImproperlyConfigured
from kombu.utils.url import maybe_sanitize_url

__all__ = ["masked", "store_url"]

REDIS_SCHEMES = frozenset({"redis", "rediss", "unix"})
_SOCKETS = frozenset({"redis+socket", "socket"})


def masked(url: str) -> str:
    """The URL as it may be shown."""
    return str(maybe_sanitize_url(url))


def store_url(app: Any, configured: str | None) -> str:
    """A URL that redis-py understands, or `ImproperlyConfigured` that says what to set."""
    given = configured or app.conf.broker_write_url or app.conf.broker_url or ""
    if isinstance(given, (list, tuple)):
        given = given[0] if given else ""
    first = given.split(";")[0].removeprefix("limits+")
    scheme = urlsplit(first).scheme
    if scheme in REDIS_SCHEMES:
        return first
    if scheme in _SOCKETS:
        return _unix(first)
    name = "limits_store_url" if configured else "the broker"
    raise ImproperlyConfigured(
        f"limits need a Redis to keep their state, and {name} ({masked(given) or 'not set'}) is none; "
        'set limits_store_url = "redis://host:6379/0"'
    )


def _unix(url: str) -> str:
    parts = urlsplit(url)
    database = parse_qs(parts.query).get("virtual_host", ["0"])[0]
    user = f"{parts.netloc.rpartition('@')[0]}@" if "@" in parts.netloc else ""
    return f"unix://{user}{quote(parts.path)}?db={database}"
