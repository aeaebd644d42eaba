"""A `limits+…` URL connects as the plain one does, is shown without its password, and says what is wrong with it."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery
from celery.exceptions import ImproperlyConfigured
from kombu import Connection
from kombu.transport import redis

from celery_limits import Limits
from celery_limits.transport.schemes import plain_of
from celery_limits.transport.transports import client_of

PARAMETERS = ("hostname", "port", "userid", "password", "virtual_host", "ssl")
URLS = [
    "redis://",
    "redis://example.org",
    "redis://example.org:7000/3",
    "redis://:secret@example.org:7000/3",
    "redis://me:se%2Fcret%40@example.org/1",
    "rediss://example.org?ssl_cert_reqs=CERT_REQUIRED&ssl_ca_certs=/etc/ca.pem",
    "rediss://example.org",
    "redis+socket:///run/redis.sock",
    "redis+socket:///run/redis.sock?virtual_host=2",
    "sentinel://:secret@one:26379",
    "amqp://me:secret@example.org:5673//vhost",
    "amqps://example.org",
]


def parameters(connection: Any) -> dict[str, Any]:
    found = {name: getattr(connection, name) for name in PARAMETERS}
    return {**found, "hostname": found["hostname"] or "localhost"}


@pytest.mark.parametrize("url", URLS)
def test_the_same_parameters_as_the_plain_url(url: str) -> None:
    assert parameters(plain_of(Connection(f"limits+{url}"))) == parameters(Connection(url))


@pytest.mark.parametrize("url", URLS)
def test_a_copy_has_them_too(url: str) -> None:
    assert parameters(plain_of(Connection(f"limits+{url}").clone())) == parameters(Connection(url).clone())


@pytest.mark.parametrize("url", URLS)
def test_the_password_is_masked(url: str) -> None:
    ours = Connection(f"limits+{url}")
    assert ours.as_uri().startswith(f"limits+{url.partition('://')[0]}://")
    for shown in (ours.as_uri(), repr(ours), str(ours)):
        assert "cret" not in shown


def test_redis_gets_what_kombu_would_give_it() -> None:
    def kwargs(url: str) -> dict[str, Any]:
        client = client_of(Connection(url, transport_options={"max_connections": 7, "client_name": "shop"}), 5.0)
        assert client is not None
        found = client.connection_pool.connection_kwargs
        same = {name: found.get(name) for name in ("host", "port", "db", "path", "client_name")}
        return {**same, "login": login(found)}

    def login(found: dict[str, Any]) -> tuple[Any, ...]:
        provider = found.get("credential_provider")
        return tuple(provider.get_credentials()) if provider else (found.get("username"), found.get("password"))

    known = "client_name" in redis.Channel.from_transport_options  # since kombu 5.6
    for url in (
        "redis://me:secret@example.org:7000/3",
        "redis+socket:///run/redis.sock?virtual_host=2",
        "redis+socket://me:se%2Fcret@/run/redis.sock",
    ):
        ours, plain = kwargs(f"limits+{url}"), kwargs(url)
        assert ours == plain
        assert ours["client_name"] == ("shop" if known else None)


def test_alternates_are_ours_too() -> None:
    connection = Connection("limits+redis://one:7000/1;limits+redis://:secret@two:7001/2")
    assert parameters(plain_of(connection))["hostname"] == "one"
    connection.switch(connection.alt[1])
    assert parameters(plain_of(connection)) == parameters(Connection("redis://:secret@two:7001/2"))
    assert type(connection.create_transport()).__name__ == "RedisTransport"
    assert "secret" not in connection.as_uri()


def test_what_is_given_beside_the_url_counts_where_the_url_says_nothing() -> None:
    given = {"userid": "me", "password": "secret", "port": 7000, "virtual_host": "5"}
    ours, plain = Connection("limits+redis://example.org", **given), Connection("redis://example.org", **given)
    assert parameters(plain_of(ours)) == parameters(plain)


@pytest.mark.parametrize("url", ["limits+mysql://localhost", "limits+http://x", "limits+redis"])
def test_an_unknown_scheme_says_what_there_is(url: str) -> None:
    with pytest.raises((ImproperlyConfigured, KeyError, OSError)) as caught:
        Connection(url, transport="limits" if "://" not in url else None).connect()
    if "://" in url:
        assert "limits+redis://" in str(caught.value)


def test_an_embedded_one_needs_a_directory() -> None:
    with pytest.raises(ImproperlyConfigured, match="name a directory"):
        Connection("limits+embedded://here").connect()


@pytest.mark.parametrize(
    "rest", [":geh/eim@localhost:6379/0", ":12/eim@localhost:6379/0", "localhost:port/0", "localhost/zero"]
)
def test_one_that_cant_be_read_says_so_and_shows_nothing_of_the_password(rest: str) -> None:
    app = Celery("shop", broker=f"limits+redis://{rest}", set_as_current=False)
    for attempt in (lambda: Limits(app).store, lambda: app.send_task("shop.ship", retry=False)):
        with pytest.raises(ImproperlyConfigured, match="can't be read as redis://") as caught:
            attempt()
        assert "eim" not in str(caught.value)
        assert caught.value.__suppress_context__
