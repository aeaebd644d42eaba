"""`Limits(app)`: one handle per app, which goes with the app."""

from __future__ import annotations

import gc
import weakref
from typing import Any

from celery import Celery

from celery_limits import Concurrency, Limits
from celery_limits.dispatch.report_end import send_events_with
from tests.redis_server import RedisServer


def _ship() -> None: ...


def _app(url: str) -> Any:
    app: Any = Celery("shop", broker=url, set_as_current=False)
    app.task(name="ship", shared=False, limits=[Concurrency("k", 1)])(_ship)
    app.finalize()
    return app


def test_there_is_one_handle_per_app() -> None:
    one, other = _app("redis://localhost:1/0"), _app("redis://localhost:1/0")
    assert Limits(one) is Limits(one)
    assert Limits(one) is not Limits(other)


def test_an_app_that_nobody_uses_any_more_is_freed(redis_server: RedisServer) -> None:
    """A process that makes many apps, such as a test suite, keeps none of them."""
    app = _app(f"limits+redis+socket://{redis_server.socket}")
    limits = Limits(app)
    assert limits.status("k").running == 0
    limits.outbox.work_off()
    send_events_with(app, lambda app=app, **_: None)
    app_ref, handle_ref = weakref.ref(app), weakref.ref(limits)
    app.close()
    del app, limits
    gc.collect()
    assert (app_ref(), handle_ref()) == (None, None)
