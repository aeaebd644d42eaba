"""A shop with tenants behind FastAPI: whoever orders in bulk waits for himself alone, and can see how long the line is.

    pip install "celery-limits[embedded]" fastapi uvicorn
    python examples/fastapi_shop.py             # orders through its own API, shows what came of it, and ends
    python examples/fastapi_shop.py --serve     # goes on, for you to try: http://127.0.0.1:8000/docs

A Redis and a worker are started along with it; in real life the worker is `celery -A shop worker`, and the broker is
`limits+redis://…`.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock, Thread
from typing import Any

from celery import Celery
from celery.contrib.testing.worker import start_worker

try:
    import uvicorn
    from fastapi import FastAPI
except ModuleNotFoundError as missing:
    sys.exit(f"{missing}: pip install fastapi uvicorn")

from celery_limits import Concurrency, Limits, RateLimit

PER_TENANT = 2

# -- the worker's side ---------------------------------------------------------------------------------------------

celery = Celery("shop")
running, peak, lock = Counter[str](), Counter[str](), Lock()


@celery.task(limits=[Concurrency("tenant:{tenant}", PER_TENANT), RateLimit("carrier-api", "50/s", burst=10)])
def ship(tenant: str, item: str) -> str:
    with lock:
        running[tenant] += 1
        peak[tenant] = max(peak[tenant], running[tenant])
    time.sleep(0.1)
    with lock:
        running[tenant] -= 1
    return f"{item} for {tenant}"


# -- the web's side ------------------------------------------------------------------------------------------------

web = FastAPI(title="Shop")
limits = Limits(celery)


@web.post("/tenants/{tenant}/orders", status_code=202)
def order(tenant: str, item: str = "book") -> dict[str, str]:
    return {"id": ship.delay(tenant, item).id}


@web.get("/tenants/{tenant}")
def tenant_status(tenant: str) -> dict[str, Any]:
    """What to show a tenant who asks why nothing happens."""
    status = limits.status(f"tenant:{tenant}")
    return {"shipping": status.running, "waiting": status.waiting, "at_once": PER_TENANT}


@web.get("/orders/{order_id}")
def order_status(order_id: str) -> dict[str, Any]:
    result = celery.AsyncResult(order_id)
    if result.ready():
        return {"state": result.state, "result": result.result}
    stories = limits.explain(order_id).tickets
    if not stories:  # on its way to a worker; or there is no such order, which Celery can't tell from it
        return {"state": result.state}
    return {"state": stories[0].state, "place_in_line": stories[0].place}


# -- all of it, in one process -------------------------------------------------------------------------------------


@contextmanager
def serving(port: int) -> Iterator[str]:
    server = uvicorn.Server(uvicorn.Config(web, port=port, log_level="warning"))
    thread = Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join(10)


def ask(url: str, method: str = "GET") -> Any:
    with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=30) as answer:
        return json.load(answer)


def try_it(url: str) -> None:
    ids = [ask(f"{url}/tenants/bulk/orders", "POST")["id"] for _ in range(20)]
    ids += [ask(f"{url}/tenants/small/orders", "POST")["id"] for _ in range(2)]
    print("bulk:", ask(f"{url}/tenants/bulk"), " the last order:", ask(f"{url}/orders/{ids[19]}"))
    done = [celery.AsyncResult(one).get(timeout=60) for one in ids]
    findings = limits.audit() or "clean"
    print(f"{len(done)} orders shipped; most at once: {dict(peak)} of {PER_TENANT}; audit: {findings}")
    assert max(peak.values()) <= PER_TENANT


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        celery.conf.update(
            broker_url=f"limits+embedded://{directory}",
            result_backend="cache+memory://",  # client and worker are one process here
        )
        serve = "--serve" in sys.argv[1:]
        with (
            start_worker(celery, pool="threads", concurrency=8, perform_ping_check=False, loglevel="warning"),
            serving(8000 if serve else 0) as url,
        ):
            if serve:
                input(f"The shop is open at {url}/docs; Enter closes it. ")
            else:
                try_it(url)


if __name__ == "__main__":
    main()
