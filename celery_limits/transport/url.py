"""A `limits+…` URL as the connection that kombu makes of the plain one.

Relies on kombu splitting such a URL at its first `+` (transport `limits`, the rest unparsed as the host name), and on
`Connection.switch` parsing an alternate by itself, with the whole scheme as the transport.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

from celery.exceptions import ImproperlyConfigured
from kombu import Connection

from celery_limits.embedded import embedded_url
from celery_limits.location import unreadable

__all__ = ["PREFIX", "SCHEMES", "plain_of", "scheme_of", "unknown"]

PREFIX = "limits+"
SCHEMES = ("redis", "rediss", "redis+socket", "sentinel", "embedded", "amqp", "amqps", "pyamqp")
_BESIDE = ("userid", "password", "virtual_host", "port", "ssl")


def scheme_of(client: Any) -> str:
    """What stands behind `limits+` in a connection's URL."""
    if client.transport_cls != "limits":
        return str(client.transport_cls).removeprefix(PREFIX)
    scheme, found, _ = (client.hostname or "").partition("://")
    if not found or scheme not in SCHEMES:
        raise unknown(scheme)
    return scheme


def unknown(scheme: str) -> ImproperlyConfigured:
    """The error for a scheme that there is not."""
    near = get_close_matches(scheme, SCHEMES, 1)
    guess = f" Did you mean {PREFIX}{near[0]}://?" if near else ""
    known = ", ".join(f"{PREFIX}{name}://" for name in SCHEMES)
    return ImproperlyConfigured(f"there is no broker {PREFIX}{scheme}://; known are {known}.{guess}")


def plain_of(client: Any) -> Any:
    """The same connection without `limits+`: its parameters are what ours go by."""
    scheme = scheme_of(client)
    if client.transport_cls == "limits":
        given = {name: client._initial_params[name] for name in _BESIDE if client._initial_params.get(name)}
        plain = _readable(_plain_url(scheme, client.hostname), given)
    elif scheme in ("redis+socket", "embedded"):
        plain = Connection(_plain_url(scheme, f"{scheme}:///{client.virtual_host or ''}"))
    else:
        parsed = {name: getattr(client, name) for name in _BESIDE}
        plain = Connection(client.hostname, transport=scheme, **parsed)
    plain.alt = [url.removeprefix(PREFIX) for url in client.alt]
    if hasattr(client, "credential_provider"):  # kombu 5.6 and later
        plain.credential_provider = plain.credential_provider or client.credential_provider
    plain.transport_options = client.transport_options
    return plain


def _readable(url: str, given: dict[str, Any]) -> Any:
    """Its connection, or an error that shows nothing of the password, which may be what can't be read."""
    try:
        plain = Connection(url, **given)
        if url.startswith(("redis://", "rediss://")):
            int((plain.virtual_host or "").strip("/") or 0)
    except ValueError:
        raise unreadable(PREFIX + url) from None
    return plain


def _plain_url(scheme: str, url: str) -> str:
    if scheme != "embedded":
        return url
    directory = url.partition("://")[2]
    if not directory.startswith("/"):
        raise ImproperlyConfigured(f"{PREFIX}{url}: name a directory, as in {PREFIX}embedded:///var/lib/shop/redis")
    return embedded_url(directory).replace("unix://", "redis+socket://", 1)
