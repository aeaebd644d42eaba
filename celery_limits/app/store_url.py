"""Where the store is: the Redis named by `limits_store_url`, or the broker where that is one.

Passwords never leave here except into the client.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from celery.exceptions import ImproperlyConfigured
from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from celery_limits.secret import SecretUrl, masked
from celery_limits.store.script_runner import discreet
from celery_limits.transport.schemes import SCHEMES, unknown, unreadable

__all__ = ["OURS_ON_REDIS", "broker_url", "is_broker", "store_client", "store_url"]

REDIS_SCHEMES = frozenset({"redis", "rediss", "unix"})
OURS = "limits+"
OURS_ON_REDIS = tuple(f"{OURS}{scheme}" for scheme in ("redis", "sentinel", "embedded"))
_SOCKETS = frozenset({"redis+socket", "socket"})


def broker_url(app: Any) -> SecretUrl:
    """The first URL of the broker."""
    given = app.conf.broker_write_url or app.conf.broker_url or ""
    if isinstance(given, (list, tuple)):
        given = given[0] if given else ""
    return SecretUrl(str(given).split(";")[0])


def is_broker(app: Any, configured: SecretUrl | None) -> bool:
    """Whether the limits are kept in the Redis that our own transport has the queues in."""
    url = broker_url(app)
    if _starts(url, OURS) and not _has_scheme(url):  # kombu would take all of it for a host that has RabbitMQ
        raise ImproperlyConfigured(f"the broker {masked(url)} is not a URL; write {OURS}redis://host:6379/0")
    return _starts(url, *OURS_ON_REDIS) and (configured is None or _names_same(configured, url))


def _starts(url: SecretUrl, *prefixes: str) -> bool:
    return url.get_secret_value().startswith(prefixes)


def _has_scheme(url: SecretUrl) -> bool:
    return "://" in url.get_secret_value()


def _names_same(store: SecretUrl, broker: SecretUrl) -> bool:
    url = broker.get_secret_value()
    return store.get_secret_value() in (url, url.removeprefix(OURS))


def store_client(app: Any, configured: SecretUrl | None, timeout: float, retries: int = 1) -> Redis:
    """A client of the store, not connected yet. Where that is our broker, with all that the broker's settings say."""
    if is_broker(app, configured):
        from celery_limits.transport.transports import client_of  # noqa: PLC0415  (needed only there)

        try:
            client = client_of(app.connection_for_write(), timeout)
        except ValueError:
            raise unreadable(broker_url(app)) from None
        assert client is not None
        client.connection_pool.connection_kwargs["retry"] = Retry(NoBackoff(), retries)
        return discreet(client)
    url, retry = store_url(app, configured), Retry(NoBackoff(), retries)
    try:
        times = {"socket_timeout": timeout, "socket_connect_timeout": timeout}
        return discreet(Redis.from_url(url.get_secret_value(), retry=retry, **times))
    except (ValueError, TypeError):
        raise unreadable(url) from None


def store_url(app: Any, configured: SecretUrl | None) -> SecretUrl:
    """A URL that redis-py understands, or `ImproperlyConfigured` that says what to set."""
    given = configured if configured is not None and configured.get_secret_value() else broker_url(app)
    if (url := _for_redis(given)) is not None:
        return url
    if _starts(given, OURS) and (scheme := _scheme_of(given)) not in SCHEMES:
        raise unknown(scheme)
    name = "limits_store_url" if given is configured else "the broker"
    raise ImproperlyConfigured(
        f"limits need a Redis to keep their state, and {name} ({masked(given) or 'not set'}) is none; "
        'set limits_store_url = "redis://host:6379/0"'
    )


def _scheme_of(url: SecretUrl) -> str:
    return url.get_secret_value().split(";")[0].removeprefix(OURS).partition("://")[0]


def _for_redis(url: SecretUrl) -> SecretUrl | None:
    scheme, first = _scheme_of(url), url.get_secret_value().split(";")[0].removeprefix(OURS)
    if scheme in REDIS_SCHEMES:
        return SecretUrl(first)
    if scheme in _SOCKETS:
        with suppress(ValueError):  # brackets that are no address
            return SecretUrl(_unix(first))
    return None


def _unix(url: str) -> str:
    parts = urlsplit(url)
    database = parse_qs(parts.query).get("virtual_host", ["0"])[0]
    user = f"{parts.netloc.rpartition('@')[0]}@" if "@" in parts.netloc else ""
    return f"unix://{user}{quote(parts.path)}?db={database}"
