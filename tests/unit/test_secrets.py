"""A password is shown nowhere: not in what a URL is shown as, nor in errors, settings or a repr."""

from __future__ import annotations

import copy
import json
import logging
import pickle
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import ImproperlyConfigured
from kombu import Connection

from celery_limits import Limits
from celery_limits.app.settings import Settings
from celery_limits.secret import masked
from celery_limits.store import Store, StoreDenied, StoreError
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


# -- settings ------------------------------------------------------------------------------------------------------


def test_settings_can_be_dumped_copied_and_pickled_without_it() -> None:
    settings = limits_on(f"redis://me:{SECRET}@host/1").settings
    told: list[Any] = [settings.model_dump(), settings.model_dump_json(), repr(settings), list(settings)]
    told += [json.dumps(settings.model_dump(mode="json")), pickle.dumps(settings), vars(settings)]
    assert SECRET not in repr(told)
    assert pickle.loads(pickle.dumps(settings)).store_url.get_secret_value() == "redis://me:**@host/1"
    assert copy.deepcopy(settings).store_url is settings.store_url
    assert settings.store_url is not None
    assert settings.store_url.get_secret_value() == f"redis://me:{SECRET}@host/1"


@pytest.mark.parametrize(
    "name", ["limits_store_url", "broker_url", "broker_read_url", "broker_write_url", "CELERY_LIMITS_STORE_URL"]
)
def test_what_celery_shows_of_the_configuration(name: str) -> None:
    app = Celery("secrets", set_as_current=False)
    if name.isupper():
        app.config_from_object({name: f"redis://me:{SECRET}@host/1"}, namespace="CELERY")
    else:
        app.conf[name] = f"limits+redis://me:{SECRET}@host/1"
    shown = [app.conf.humanize(), app.conf.table(), app.conf.table(with_defaults=True), app.bugreport()]
    assert SECRET not in repr(shown)
    assert "me:**" in repr(shown[1])


# -- connections ---------------------------------------------------------------------------------------------------

PLACES = [
    f"limits+redis://me:{SECRET}@host:6379/3",
    f"limits+redis://:{SECRET}@host",
    f"limits+rediss://me:{SECRET}@host:6379/3?ssl_cert_reqs=required",
    f"limits+redis+socket://me:{SECRET}@/run/redis.sock?virtual_host=3",
    f"limits+sentinel://:{SECRET}@one:26379",
    f"limits+amqp://me:{SECRET}@host//shop",
]


def app_of(url: str) -> Any:
    app = Celery("secrets", broker=url, set_as_current=False)
    app.conf.limits_store_url = f"redis://me:{SECRET}@host/1"
    return app


@pytest.mark.parametrize("make", [Connection, lambda url: app_of(url).connection_for_read()], ids=["kombu", "celery"])
@pytest.mark.parametrize("url", PLACES)
def test_a_connection_shows_it_nowhere_but_in_its_password(url: str, make: Callable[[str], Any]) -> None:
    connection = make(url)
    clone = connection.clone()
    for one in (connection, clone):
        info = one.info()
        assert info.pop("password") == SECRET, "which Celery takes out, as everyone must"
        shown = [info, one.as_uri(), repr(one), str(one), repr(one.transport), one.hostname, one.transport_cls]
        assert SECRET not in repr(shown)
        assert "**@" in one.as_uri()
        again = Connection(one.as_uri(include_password=True))
        said = ("hostname", "userid", "password", "virtual_host", "port", "transport")
        assert [again.info()[name] for name in said] == [one.info()[name] for name in said]
        assert again.as_uri() == one.as_uri()


def test_an_alternate_is_shown_without_it_too() -> None:
    one = Connection(f"limits+redis://a;limits+redis://me:{SECRET}@b/2")
    one.switch(one.alt[1])
    assert SECRET not in f"{one.as_uri()} {one!r} {one.info()['hostname']}"
    assert Connection(one.as_uri(include_password=True)).as_uri() == one.as_uri()


@pytest.fixture
def guest(redis_server: RedisServer) -> Iterator[str]:
    """A URL with which one can log in, in kombu's form."""
    with redis_server.client() as client:
        rights: dict[str, Any] = {"keys": ["*"], "channels": ["*"], "commands": ["+@all"]}
        client.acl_setuser("guest", enabled=True, passwords=[f"+{SECRET}"], **rights)
        yield f"redis+socket://guest:{SECRET}@{redis_server.socket}"
        client.acl_deluser("guest")


def test_what_is_behind_a_connection_shows_it_neither(guest: str) -> None:
    app = app_of(f"limits+{guest}")
    app.conf.limits_store_url = None
    limits = Limits(app)
    limits.store.beat("w")
    with app.connection_for_write() as connection:
        channel = connection.default_channel
        queue = connection.SimpleQueue("q")
        queue.put("message")
        message = queue.get(timeout=5)
        message.ack()
        shown = [connection, connection.transport, channel, channel.pool, channel.async_pool, channel.client, queue]
        shown += [channel.scripts, channel.scripts._client, channel.member, message, limits.outbox, limits.releaser]
        shown += [channel._create_client().connection_pool.connection_kwargs]
        queue.clear()
        queue.close()
    client: Any = limits.store.client
    shown += [limits, limits.store, client, client.connection_pool, limits.store._call]
    shown += [limits.store._call._connection(), limits.settings, limits.url, vars(limits)]
    limits.store.leave("w")
    limits.store.close()
    assert SECRET not in repr(shown)


# -- what an error reporter sees -----------------------------------------------------------------------------------


def reported(error: BaseException) -> str:
    """Text and local variables of an error and of what led to it, as Sentry sends them; but for those of this file, and
    for Celery's, which has the whole configuration in a variable of that name."""
    told, pending = [], [error]
    while pending:
        one = pending.pop()
        told += [str(one), repr(one), repr(one.args)]
        trace: TracebackType | None = one.__traceback__
        while trace is not None:
            file = trace.tb_frame.f_code.co_filename
            if file != __file__ and "/celery/" not in file:
                told += [f"{name} = {_repr(value)}" for name, value in trace.tb_frame.f_locals.items()]
            trace = trace.tb_next
        cause = one.__cause__ if one.__suppress_context__ else one.__cause__ or one.__context__
        pending += [cause] if cause is not None and cause is not one else []
    return "\n".join(told)


def _repr(value: object) -> str:
    try:
        return repr(value)
    except Exception as error:  # a connection with a URL that can't be read says so
        return f"<broken repr: {error}>"


def _setting(value: Any) -> Callable[[], object]:
    return lambda: limits_on(value).store


def _broker(url: str, act: Callable[[Any], object]) -> Callable[[], object]:
    return lambda: act(Celery("secrets", broker=url, set_as_current=False))


WRONG: dict[str, Callable[[], object]] = {
    "not-a-text": _setting([f"redis://:{SECRET}@host"]),
    "a-slash": _setting(f"redis://:{SECRET}/and@more"),
    "no-port": _setting(f"redis://:{SECRET}@host:port"),
    "no-redis": _setting(f"amqp://user:{SECRET}@host"),
    "unknown": _setting(f"limits+mysql://user:{SECRET}@host"),
    "no-url": _broker(f"limits+user:{SECRET}@host", lambda app: Limits(app).store),
    "broker-a-slash": _broker(f"limits+redis://:{SECRET}/and@more", lambda app: Limits(app).store),
    "broker-no-number": _broker(f"limits+redis://:{SECRET}@host/zero", lambda app: app.send_task("t", retry=False)),
    "embedded": _broker(f"limits+embedded://me:{SECRET}@/tmp", lambda app: app.connection().connect()),
    "amqp-store": _broker(f"amqp://me:{SECRET}@host", lambda app: Limits(app).store),
}


@pytest.mark.parametrize("name", WRONG)
def test_no_error_of_the_configuration_has_it_in_its_frames(name: str) -> None:
    with pytest.raises(ImproperlyConfigured) as caught:
        WRONG[name]()
    assert SECRET not in reported(caught.value)


@pytest.mark.parametrize("trouble", ["refused", "gone", "silent"])
def test_no_error_of_the_store_has_it_in_its_frames(redis_server: RedisServer, trouble: str) -> None:
    with RedisServer(redis_server.binary) as server:
        password = f"+{SECRET}" if trouble != "refused" else "+another"
        with server.client() as client:
            client.acl_setuser("guest", enabled=True, passwords=[password], keys=["*"], commands=["+@all"])
        limits = limits_on(f"unix://guest:{SECRET}@{server.socket}")
        limits.app.conf.limits_store_timeout = 0.2
        if trouble == "gone":
            server.kill()
        elif trouble == "silent":
            server.pause()
        for call in (lambda: limits.store.beat("w"), limits.store.keys, lambda: limits.store.listen(0.01)):
            with pytest.raises(StoreError) as caught:
                call()
            assert SECRET not in reported(caught.value)
        if trouble == "silent":
            server.resume()
