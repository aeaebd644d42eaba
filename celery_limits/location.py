"""Where the store is: the Redis named by `limits_store_url`, or the broker where that is one.

Passwords never leave here except into the client.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from celery.exceptions import ImproperlyConfigured
from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from .store.caller import discreet

__all__ = ["broker_url", "is_broker", "masked", "store_client", "store_url", "unreadable"]

REDIS_SCHEMES = frozenset({"redis", "rediss", "unix"})
OURS = "limits+"
_OURS_ON_REDIS = tuple(f"{OURS}{scheme}" for scheme in ("redis", "sentinel", "embedded"))
_SOCKETS = frozenset({"redis+socket", "socket"})


_ALTERNATES = re.compile(r";(?=[\w.+-]+://)")
_CREDENTIALS = re.compile(r"^([\w.+-]*:/*)?(.*)@", re.DOTALL)
_SECRET_OPTION = re.compile(r"([?&][^=&]*(?:password|secret|token)[^=&]*=)[^&]*", re.IGNORECASE)


def masked(url: str) -> str:
    """The URL, or several of them, as it may be shown. Never raises: what is shown is often what could not be read."""
    return ";".join(_masked(part) for part in _ALTERNATES.split(url))


def _masked(url: str) -> str:
    """All before the last @ is taken for credentials, since a password may have any character in it."""

    def hide(match: re.Match[str]) -> str:
        user, colon, _ = match[2].partition(":")
        return f"{match[1] or ''}{user}:**@" if colon else f"{match[1] or ''}**@"

    return _SECRET_OPTION.sub(r"\1**", _CREDENTIALS.sub(hide, url))


def broker_url(app: Any) -> str:
    """The first URL of the broker."""
    given = app.conf.broker_write_url or app.conf.broker_url or ""
    if isinstance(given, (list, tuple)):
        given = given[0] if given else ""
    return str(given).split(";")[0]


def is_broker(app: Any, configured: str | None) -> bool:
    """Whether the limits are kept in the Redis that our own transport has the queues in."""
    url = broker_url(app)
    if url.startswith(OURS) and "://" not in url:  # kombu would take all of it for the name of a host that has RabbitMQ
        raise ImproperlyConfigured(f"the broker {masked(url)} is not a URL; write {OURS}redis://host:6379/0")
    return url.startswith(_OURS_ON_REDIS) and configured in (None, url, url.removeprefix(OURS))


def store_client(app: Any, configured: str | None, timeout: float, retries: int = 1) -> Redis:
    """A client of the store, not connected yet. Where that is our broker, with all that the broker's settings say."""
    if is_broker(app, configured):
        from .transport.transports import client_of  # noqa: PLC0415  (needed only there)

        try:
            client = client_of(app.connection_for_write(), timeout)
        except ValueError:
            raise unreadable(broker_url(app)) from None
        assert client is not None
        client.connection_pool.connection_kwargs["retry"] = Retry(NoBackoff(), retries)
        return discreet(client)
    url, retry = store_url(app, configured), Retry(NoBackoff(), retries)
    try:
        return discreet(Redis.from_url(url, socket_timeout=timeout, socket_connect_timeout=timeout, retry=retry))
    except (ValueError, TypeError):
        raise unreadable(url) from None


def unreadable(url: str) -> ImproperlyConfigured:
    """In place of an error of redis-py, kombu or urllib, whose text may quote a part of the password."""
    return ImproperlyConfigured(
        f"{masked(url)} can't be read as redis://user:password@host:port/number; in a password, / ? # @ and % must be "
        "written %2F and so on (urllib.parse.quote)"
    )


def store_url(app: Any, configured: str | None) -> str:
    """A URL that redis-py understands, or `ImproperlyConfigured` that says what to set."""
    given = configured or broker_url(app)
    first = given.split(";")[0].removeprefix(OURS)
    scheme = first.partition("://")[0]
    if scheme in REDIS_SCHEMES:
        return first
    if scheme in _SOCKETS:
        with suppress(ValueError):  # brackets that are no address
            return _unix(first)
    if given.startswith(OURS):
        from .transport.url import SCHEMES, unknown  # noqa: PLC0415  (needed only there)

        if scheme not in SCHEMES:
            raise unknown(scheme)
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
