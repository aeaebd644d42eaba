"""A shop at night, with a real worker: two tenants, one of which is stuck. Its configuration is in the environment,
as JSON.

A body notes its start as a file, and ends when the file is gone that holds up its tenant.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from celery import Celery

from celery_limits import Concurrency, FloatingConcurrency, RateLimit

__all__ = ["CONF", "app", "build", "warehouse_slots"]

CONF = "LIMITS_NIGHT_CONF"


def warehouse_slots() -> int:
    return 12


def build(conf: dict[str, Any]) -> Any:
    app: Any = Celery("shop", set_as_current=False)
    app.conf.update({name: value for name, value in conf.items() if name != "directory"})
    place = Path(conf["directory"])

    def body(task: Any, tenant: str) -> None:
        (place / f"started-{task.request.id}").touch()
        while (place / f"hold-{tenant}").exists():
            time.sleep(0.02)

    tenant = Concurrency("tenant:{tenant}", 2)
    warehouse = FloatingConcurrency("warehouse", default=12, refresh="tests.web.night:warehouse_slots", every=600)
    api = RateLimit("carrier-api", "30/m", burst=5)
    for name, limits in (
        ("shop.ship", [tenant, warehouse]),
        ("shop.label", [warehouse, api]),
        ("shop.render", [Concurrency("gpu", 2, fair_by="{tenant}")]),
        ("shop.call", [api]),
    ):
        app.task(bind=True, shared=False, name=name, limits=limits)(body)
    app.finalize()
    return app


app = build(json.loads(os.environ[CONF])) if CONF in os.environ else None
