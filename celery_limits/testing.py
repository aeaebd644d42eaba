"""For your own tests: an app with a limit store of its own, and the proof that nothing is left in it.

    pytest_plugins = ["celery_limits.testing"]

    def test_shipping(limited_app):
        with limited_app(app) as limits:
            ...                                    # publish, run a worker (celery.contrib.testing has one)
            assert limits.status("tenant:42").running == 0

The store is an embedded Redis (`pip install "celery-limits[embedded]"`) that starts with the first test and ends with
the last. Leaving the `with` block fails the test if anything is still held, parked or listed, or if the audit finds a
discrepancy.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

from .app import Limits
from .embedded import EmbeddedRedis
from .store.audit import leftovers

__all__ = ["limited_app", "limits_on", "limits_store_url"]

_namespaces = itertools.count(1)


@contextmanager
def limits_on(app: Any, store_url: str) -> Iterator[Limits]:
    """The app with an empty store of its own at this URL; an AssertionError if it is not empty again at the end."""
    limits = Limits(app)
    before = app.conf.get("limits_store_url"), app.conf.get("limits_namespace")
    app.conf.limits_store_url, app.conf.limits_namespace = store_url, f"test.{next(_namespaces)}"
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
        app.conf.limits_store_url, app.conf.limits_namespace = before
        limits.reload()


@pytest.fixture(scope="session")
def limits_store_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An embedded Redis for the session."""
    with EmbeddedRedis(tmp_path_factory.mktemp("limits")) as server:
        yield server.url


@pytest.fixture
def limited_app(limits_store_url: str) -> Callable[[Any], AbstractContextManager[Limits]]:
    """Gives an app a limit store of its own for a `with` block."""
    return lambda app: limits_on(app, limits_store_url)
