"""A `limits+…` URL as the connection that kombu makes of the plain one.

Relies on kombu splitting such a URL at its first `+` (transport `limits`, the rest unparsed as the host name), and on
`Connection.switch` parsing an alternate by itself, with the whole scheme as the transport. The unparsed rest has the
password in it, and kombu, Celery and monitors show host names: so `adopt_url` takes it out before anybody looks.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any
from urllib.parse import quote

from celery.exceptions import ImproperlyConfigured
from kombu import Connection
from kombu.utils.url import as_url, url_to_parts

from celery_limits.embedded.server import embedded_url
from celery_limits.secret import MASK, SecretUrl, masked

__all__ = ["PREFIX", "SCHEMES", "adopt_url", "plain_of", "scheme_of", "unknown", "unreadable", "uri_of"]

PREFIX = "limits+"
SCHEMES = ("redis", "rediss", "redis+socket", "sentinel", "embedded", "amqp", "amqps", "pyamqp")
_BESIDE = ("userid", "password", "virtual_host", "port", "ssl")
_AT_PATH = frozenset({"redis+socket", "embedded"})
"""Schemes that name a path instead of a host."""


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


def unreadable(url: str | SecretUrl) -> ImproperlyConfigured:
    """In place of an error of redis-py, kombu or urllib, whose text may quote a part of the password."""
    return ImproperlyConfigured(
        f"{masked(url)} can't be read as redis://user:password@host:port/number; in a password, / ? # @ and % must be "
        "written %2F and so on (urllib.parse.quote)"
    )


def adopt_url(client: Any) -> None:
    """Takes user and password out of the URL that kombu left unparsed, and makes them the connection's own."""
    if client.transport_cls != "limits":
        return
    scheme = scheme_of(client)
    _check_readable(client, scheme)
    login, location = _split(client.hostname)
    found = {"hostname": f"{scheme}://{location}", **login}
    client._initial_params.update(found)
    for name, value in found.items():
        setattr(client, name, value)


def _check_readable(client: Any, scheme: str) -> None:
    """Or an error that shows nothing of the password, which may be what can't be read."""
    if scheme == "embedded" and not client.hostname.partition("://")[2].startswith("/"):
        shown = masked(PREFIX + client.hostname)
        raise ImproperlyConfigured(f"{shown}: name a directory, as in {PREFIX}embedded:///var/lib/shop/redis")
    try:
        _check_number(url_to_parts(client.hostname).path, needed=scheme in ("redis", "rediss"))
    except ValueError:
        raise unreadable(PREFIX + client.hostname) from None


def _check_number(path: str | None, *, needed: bool) -> None:
    """Of the database. In a function of its own, since what is taken for the path may be a part of the password."""
    if needed:
        int((path or "").strip("/") or 0)


def _split(url: str) -> tuple[dict[str, str], str]:
    """What the URL says of user and password, and the rest of it behind `://`."""
    start = url.index("://") + 3
    ends = [place for place in map(url[start:].find, "/?#") if place >= 0]
    end = start + min(ends, default=len(url))
    parts = url_to_parts(url)
    said = {"userid": parts.username, "password": parts.password}
    login = {name: value for name, value in said.items() if value}
    return login, url[start:end].rpartition("@")[2] + url[end:]


def plain_of(client: Any) -> Any:
    """The same connection without `limits+`: its parameters are what ours go by."""
    adopt_url(client)
    scheme, is_url = scheme_of(client), client.transport_cls == "limits"
    if scheme in _AT_PATH:
        plain = Connection(_plain_url(client, scheme), **_beside(client) if is_url else {})
    else:
        plain = Connection(client.hostname, transport=None if is_url else scheme, **_beside(client))
    plain.alt = [url.removeprefix(PREFIX) for url in client.alt]
    if hasattr(client, "credential_provider"):  # kombu 5.6 and later
        plain.credential_provider = plain.credential_provider or client.credential_provider
    plain.transport_options = client.transport_options
    return plain


def _beside(client: Any) -> dict[str, Any]:
    return {name: getattr(client, name) for name in _BESIDE}


def _plain_url(client: Any, scheme: str) -> str:
    if scheme == "embedded":
        return embedded_url(_location_of(client)).replace("unix://", "redis+socket://", 1)
    return f"{scheme}://{_login(client, quote(client.password or '', safe=''))}{_location_of(client)}"


def _location_of(client: Any) -> str:
    """What is behind `://`. Of an alternate, which kombu has parsed, the path is the virtual host."""
    _, found, location = (client.hostname or "").partition("://")
    return location if found else f"/{client.virtual_host or ''}"


def _login(client: Any, password: str) -> str:
    user = quote(client.userid or "", safe="")
    return f"{user}:{password}@" if password else f"{user}@" if user else ""


def uri_of(client: Any, *, include_password: bool = False, mask: str = MASK) -> str:
    """The URL of a connection, by default without its password."""
    scheme, secret = scheme_of(client), client.password
    if callable(secret):  # kombu 5.7 and later
        secret = secret() if include_password else mask
    if scheme in _AT_PATH or client.transport_cls == "limits":
        shown = mask if secret and not include_password else quote(secret or "", safe="")
        return f"{PREFIX}{scheme}://{_login(client, shown)}{_location_of(client)}"
    path = quote(client.virtual_host or "")
    where = (client.hostname or "localhost", client.port, client.userid, secret, path)
    return str(as_url(PREFIX + scheme, *where, sanitize=not include_password, mask=mask))
