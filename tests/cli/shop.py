"""A shop whose limits the command line tests look at and steer. Its configuration is in the environment, as JSON."""

from __future__ import annotations

import json
import os
from typing import Any

from celery import Celery

from celery_limits import Concurrency, FloatingConcurrency, RateLimit

__all__ = ["CONF", "app", "build"]

CONF = "LIMITS_CLI_CONF"


def slots() -> int:
    return 4


def _key_by_hand(tenant: int) -> str:
    return f"hand:{tenant}"


def ship(tenant: int) -> None:
    """Never runs: tests stop at the gate."""


def build(conf: dict[str, Any]) -> Any:
    app: Any = Celery("shop", set_as_current=False)
    app.conf.update(conf)
    stock = FloatingConcurrency("warehouse", default=2, refresh="tests.cli.shop:slots", every=30)
    tenant = Concurrency("tenant:{tenant}", 3)
    app.task(shared=False, name="shop.ship", limits=[tenant, stock])(ship)
    app.task(shared=False, name="shop.call", limits=[RateLimit("carrier-api", "100/m", burst=2)])(ship)
    app.task(shared=False, name="shop.pack", limits=[Concurrency("packers", 1)])(ship)
    app.task(shared=False, name="shop.odd", limits=[Concurrency(_key_by_hand, 5)])(ship)
    app.task(shared=False, name="shop.free")(ship)
    app.finalize()
    for name in [name for name in app.tasks if not name.startswith(("shop.", "celery"))]:
        app.tasks.unregister(name)  # what other tests of this process share with every app
    return app


app = build(json.loads(os.environ[CONF])) if CONF in os.environ else None
