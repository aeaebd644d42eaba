"""A pytest plugin for somebody else's tests: notes each outcome at once, bounds each test, and swaps the transport.

It runs in the suite's own environment, so it knows nothing of this package but its name.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any
from urllib.parse import urlsplit

import pytest

NOTES = os.environ["LIMITS_UPSTREAM_NOTES"]
TIMEOUT = float(os.environ["LIMITS_UPSTREAM_TIMEOUT"])
PREFIX = os.environ.get("LIMITS_UPSTREAM_PREFIX", "")
"""What goes before the URL of a Redis, wherever kombu meets one: `limits+` or nothing."""
SWAP_CLASSES = bool(os.environ.get("LIMITS_UPSTREAM_SWAP"))
"""For tests that take the classes of kombu's module instead of a URL."""

_REDIS_URL = re.compile(r"(^|;)(?=(?:redis|rediss|sentinel)://)")


def _note(**fields: Any) -> None:
    with open(NOTES, "a", encoding="utf-8") as file:
        file.write(json.dumps(fields) + "\n")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "env: where a test of kombu's is meant to run")
    if PREFIX:
        _prefix_urls()
        if SWAP_CLASSES:
            _swap_classes()


def _prefix_urls() -> None:
    from kombu import Connection  # noqa: PLC0415  (kombu is not imported before its turn)

    make, tell = Connection.__init__, Connection.info

    def init(self: Any, hostname: Any = "localhost", *args: Any, **kwargs: Any) -> None:
        # One with a transport class of its own plays somebody else, such as an old kombu.
        if _is_test(sys._getframe(1)) and isinstance(hostname, str) and not isinstance(kwargs.get("transport"), type):
            hostname = _REDIS_URL.sub(rf"\g<1>{PREFIX}", hostname)
        make(self, hostname, *args, **kwargs)

    def info(self: Any) -> Any:
        """kombu leaves a URL with a `+` as it is, and tests ask it for host and port to look into that Redis."""
        told = tell(self)
        if _is_test(sys._getframe(1)) and str(told["hostname"]).startswith(PREFIX):
            url = urlsplit(told["hostname"])
            told.update(hostname=url.hostname, port=url.port)
        return told

    Connection.__init__, Connection.info = init, info


def _is_test(caller: FrameType) -> bool:
    """What is made inside of kombu or of ours is made as it is meant."""
    return str(caller.f_globals["__name__"]).startswith("t.")


def _swap_classes() -> None:
    from kombu.transport import get_transport_cls  # noqa: PLC0415
    from kombu.transport import redis as theirs  # noqa: PLC0415

    ours = get_transport_cls(f"{PREFIX}redis")
    theirs.Transport, theirs.Channel = ours, ours.Channel


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """No test takes longer than we wait or runs again by its own wish, nor is it skipped for what our URL is called."""
    for item in items:
        for node in item.listchain():
            node.own_markers = [mark for mark in node.own_markers if _is_kept(mark)]
        item.add_marker(pytest.mark.timeout(TIMEOUT))
    _note(collected=[item.nodeid for item in items])


def _is_kept(mark: pytest.Mark) -> bool:
    """Celery's tests of recovery look for the very scheme `redis`, by which they mean plain TCP: ours is that too."""
    if "plaintext TCP redis broker" in str(mark.kwargs.get("reason")):
        return not os.environ.get("TEST_BROKER", "").startswith("limits+redis://")
    return mark.name not in ("timeout", "flaky")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    _note(begin=item.nodeid)
    result = yield
    _note(end=item.nodeid)
    return result


def pytest_runtest_logreport(report: Any) -> None:
    outcome = report.outcome
    if hasattr(report, "wasxfail"):
        outcome = "xfailed" if report.skipped else "xpassed"
    text = "" if report.passed else str(getattr(report, "longrepr", ""))
    if report.failed and "Timeout (>" in text:
        outcome = "timeout"
    _note(test=report.nodeid, when=report.when, outcome=outcome, seconds=report.duration, text=text[-3000:])
