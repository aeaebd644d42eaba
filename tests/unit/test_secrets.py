"""A password is shown nowhere: not in what a URL is shown as, nor in errors, settings or a repr."""

from __future__ import annotations

import logging

import pytest
from celery import Celery
from celery.exceptions import ImproperlyConfigured

from celery_limits import Limits
from celery_limits.location import masked
from celery_limits.settings import Settings
from celery_limits.store import Store, StoreDenied
from tests.redis_server import RedisServer

SECRET = "s3cr3t"

URLS = {
    f"redis://:{SECRET}@host:6379/0": "redis://:**@host:6379/0",
    f"redis://user:{SECRET}@host": "redis://user:**@host",
    f"redis://{SECRET}@host": "redis://**@host",
    f"rediss://user:{SECRET}/with?odd#signs@host/1": "rediss://user:**@host/1",
    f"redis://user:a@{SECRET}@host": "redis://user:**@host",
    f"redis://:a;{SECRET}@host": "redis://:**@host",
    f"redis://host/0?password={SECRET}&db=1": "redis://host/0?password=**&db=1",
    f"rediss://host?ssl_password={SECRET}": "rediss://host?ssl_password=**",
    f"unix://user:{SECRET}@/run/redis.sock?db=2": "unix://user:**@/run/redis.sock?db=2",
    f"redis://:{SECRET}@one;redis://:{SECRET}@two": "redis://:**@one;redis://:**@two",
    f"limits+sentinel://:{SECRET}@one:26379;sentinel://:{SECRET}@two": "limits+sentinel://:**@one:26379;sentinel://:**@two",
    f"user:{SECRET}@host": "user:**@host",
    "redis://host:6379/0": "redis://host:6379/0",
    "": "",
}


@pytest.mark.parametrize("url", URLS, ids=range(len(URLS)))
def test_a_url_is_shown_without_its_password(url: str) -> None:
    assert masked(url) == URLS[url]
    assert SECRET not in masked(url)


def limits_on(url: object) -> Limits:
    app = Celery("secrets", set_as_current=False)
    app.conf.limits_store_url = url
    return Limits(app)


@pytest.mark.parametrize("url", [f"redis://:{SECRET}@host:6379/0", f"redis://me:{SECRET}@host:6379/0"])
def test_settings_and_handles_do_not_show_it(url: str) -> None:
    limits = limits_on(url)
    shown = [repr(limits), repr(limits.settings), str(limits.settings), limits.url, repr(limits.store)]
    shown.append(repr(limits.store.client))
    assert SECRET not in " ".join(shown)


@pytest.mark.parametrize(
    "url",
    [
        [f"redis://:{SECRET}@host"],
        f"redis://:{SECRET}/and@more",
        f"redis://:x{SECRET}@host:port",
        f"amqp://user:{SECRET}@host",
        f"redis://host?db=one&password={SECRET}",
    ],
    ids=["a-list", "a-slash", "no-port", "no-redis", "no-number"],
)
def test_a_url_that_can_not_be_used_is_not_quoted(url: object) -> None:
    with pytest.raises(ImproperlyConfigured) as caught:
        limits_on(url).store.beat("w")
    assert SECRET not in f"{caught.value} {caught.value.__cause__}"
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_the_error_of_another_setting_quotes_it() -> None:
    app = Celery("secrets", set_as_current=False)
    app.conf.limits_lease = "soon"
    with pytest.raises(ImproperlyConfigured, match="limits_lease = 'soon'"):
        Settings.of(app)


@pytest.mark.parametrize("setting", ["limits_store_url", "broker_url"])
def test_a_handle_logs_in_with_it_all_the_same(redis_server: RedisServer, setting: str) -> None:
    app = Celery("secrets", set_as_current=False)
    scheme = "unix" if setting == "limits_store_url" else "limits+redis+socket"
    app.conf[setting] = f"{scheme}://guest:{SECRET}@{redis_server.socket}"
    with redis_server.client() as client:
        client.acl_setuser("guest", enabled=True, passwords=[f"+{SECRET}"], keys=["*"], commands=["+@all"])
        try:
            store = Limits(app).store
            store.beat("w")
            assert SECRET not in repr(store.client)
            who = [connection["user"] for connection in client.client_list()]
            store.leave("w")
            store.close()
        finally:
            client.acl_deluser("guest")
    assert "guest" in who


def test_a_refused_password_is_not_in_the_error(redis_server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with redis_server.client() as client:
        client.acl_setuser("guest", enabled=True, passwords=["+another"], keys=["*"], commands=["+@all"])
        store = Store.from_url(f"unix://guest:{SECRET}@{redis_server.socket}")
        try:
            with pytest.raises(StoreDenied) as caught:
                store.beat("w")
        finally:
            client.acl_deluser("guest")
    assert SECRET not in f"{caught.value!r} {caught.value} {caught.value.__cause__!r} {caplog.text} {store!r}"
