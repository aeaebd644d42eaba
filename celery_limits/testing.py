"""For your own tests: an app with a broker and a limit store of its own, and the proof that nothing is left in it.

    pytest_plugins = ["celery_limits.testing"]

    def test_shipping(limited_app):
        with limited_app(app) as limits:
            ...                                    # publish, run a worker (celery.contrib.testing has one)
            assert limits.status("tenant:42").running == 0

The store is an embedded Redis (`pip install "celery-limits[embedded]"`) that starts with the first test and ends with
the last. The app's broker is replaced, too: by that Redis where its URL is of our own transport, else by kombu's
in-memory one. Leaving the `with` block fails the test if anything is still held, parked or listed, or if the audit
finds a discrepancy.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

from .app.handle import Limits
from .app.store_url import OURS_ON_REDIS, broker_url
from .embedded.server import EmbeddedRedis
from .store.audit import leftovers

__all__ = ["limited_app", "limits_on", "limits_store_url"]

MEMORY = "memory://"
_BROKER_URLS = ("broker_url", "broker_read_url", "broker_write_url")
_SWAPPED = (*_BROKER_URLS, "broker_transport_options", "limits_store_url", "limits_namespace")
_namespaces = itertools.count(1)


@contextmanager
def limits_on(app: Any, store_url: str) -> Iterator[Limits]:
    """The app with a broker and an empty store of its own, at this URL; an AssertionError if the store is not empty at
    the end. What it publishes meanwhile never reaches the app's configured broker."""
    limits, name = Limits(app), f"test.{next(_namespaces)}"
    before = {setting: app.conf.get(setting) for setting in _SWAPPED}
    app.conf.update(_broker_beside(app, store_url, name), limits_namespace=name)
    _reconnect(app)
    limits.reload()
    try:
        yield limits
        while limits.store.sweep().after.more:
            pass
        findings = limits.audit()
        left = [name for name in leftovers(limits.store) if name != "rates"]  # which go by themselves, with time
        assert not findings, f"the audit found {[str(finding) for finding in findings]}"
        assert not left, f"left in the limit store: {left}"
    finally:
        app.conf.update(before)
        _reconnect(app)
        limits.reload()


def _broker_beside(app: Any, store_url: str, name: str) -> dict[str, Any]:
    """A broker that is not the app's own, and the store: with our transport both in one Redis, else kombu's memory."""
    if not broker_url(app).get_secret_value().startswith(OURS_ON_REDIS):
        urls = dict.fromkeys(_BROKER_URLS, MEMORY)
        return {**urls, "limits_store_url": store_url}
    scheme, _, rest = store_url.partition("://")
    url = f"limits+redis+socket://{rest}" if scheme == "unix" else f"limits+{store_url}"
    options = {**app.conf.broker_transport_options, "global_keyprefix": f"{name}:"}
    return {**dict.fromkeys(_BROKER_URLS, url), "limits_store_url": None, "broker_transport_options": options}


def _reconnect(app: Any) -> None:
    """Forgets the pools of another broker. Relies on `Celery._pool` and `AMQP._producer_pool` being made anew."""
    app._pool = None
    app.amqp._producer_pool = None


@pytest.fixture(scope="session")
def limits_store_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An embedded Redis for the session."""
    with EmbeddedRedis(tmp_path_factory.mktemp("limits")) as server:
        yield server.url


@pytest.fixture
def limited_app(limits_store_url: str) -> Callable[[Any], AbstractContextManager[Limits]]:
    """Gives an app a limit store of its own for a `with` block."""
    return lambda app: limits_on(app, limits_store_url)
