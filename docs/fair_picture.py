"""Draws docs/_static/fairness.svg from a real run: the same load at a key of four slots, without `fair_by` and with it.

    python docs/fair_picture.py

It starts a Redis and a worker of its own, and takes half a minute.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

from celery import Celery
from celery.contrib.testing.worker import start_worker

from celery_limits import Concurrency, Limits
from celery_limits.embedded import EmbeddedRedis

SLOTS = 4
LOAD = (("flooding", 0.0, 44, 0.5), ("small", 1.2, 8, 0.5), ("quick", 2.2, 24, 0.1))
"""Tenant, when it sends, how many tasks, and how long each of them takes, in seconds."""
COLOURS = {"flooding": "#d1495b", "small": "#2e86ab", "quick": "#edae49"}
WIDTH, LANE, LEFT, TOP = 760, 18, 12, 44
PICTURE = Path(__file__).parent / "_static" / "fairness.svg"


class Body(NamedTuple):
    tenant: str
    began: float
    ended: float


def main() -> None:
    app: Any = Celery("picture", set_as_current=False)
    with tempfile.TemporaryDirectory() as directory, EmbeddedRedis(directory) as server:
        path = server.url.removeprefix("unix://")
        app.conf.update(broker_url=f"limits+redis+socket://{path}", result_backend="cache+memory://")
        panels = [
            (title, measure(app, title, fair_by))
            for title, fair_by in (("without fair_by", None), ('fair_by="{tenant}"', "{tenant}"))
        ]
        assert Limits(app).audit() == []
    PICTURE.write_text(drawn(panels))
    for title, bodies in panels:
        for tenant, sent, *_ in LOAD[1:]:
            first = min(body.began for body in bodies if body.tenant == tenant)
            print(f"{title}: {tenant} waits {first - sent:.2f} s for its first task")


def measure(app: Any, key: str, fair_by: str | None) -> list[Body]:
    bodies, lock = list[Body](), Lock()

    def work(tenant: str, seconds: float) -> None:
        start = time.monotonic()
        time.sleep(seconds)
        with lock:
            bodies.append(Body(tenant, start - began, time.monotonic() - began))

    limit = Concurrency(key.replace("{", "").replace("}", ""), SLOTS, fair_by=fair_by)
    task = app.task(name=f"work {key}", limits=[limit])(work)
    with start_worker(app, pool="threads", concurrency=2 * SLOTS, perform_ping_check=False, loglevel="warning"):
        began = time.monotonic()
        sent = []
        for tenant, at, count, seconds in LOAD:
            time.sleep(max(0.0, began + at - time.monotonic()))
            sent += [task.delay(tenant, seconds) for _ in range(count)]
        for one in sent:
            one.get(timeout=120)
    return sorted(bodies, key=lambda body: body.began)


def drawn(panels: list[tuple[str, list[Body]]]) -> str:
    last = max(body.ended for _, bodies in panels for body in bodies)
    scale, height = (WIDTH - 2 * LEFT) / last, SLOTS * LANE
    parts, y = [], TOP
    for title, bodies in panels:
        parts.append(f'<text x="{LEFT}" y="{y - 6}" font-weight="bold">{title.replace(chr(34), "&quot;")}</text>')
        free = [0.0] * SLOTS
        for body in bodies:
            lane = min(range(SLOTS), key=free.__getitem__)
            free[lane] = body.ended
            x, width = LEFT + body.began * scale, max(1.0, (body.ended - body.began) * scale - 1)
            place = f'x="{x:.1f}" y="{y + lane * LANE}" width="{width:.1f}" height="{LANE - 2}"'
            parts.append(f'<rect {place} fill="{COLOURS[body.tenant]}"/>')
        for tenant, at, *_ in LOAD[1:]:
            x = LEFT + at * scale
            parts.append(f'<path d="M{x:.1f} {y - 3}v{height + 4}" stroke="{COLOURS[tenant]}" stroke-dasharray="3 2"/>')
        y += height + 34
    for second in range(int(last) + 1):
        x = LEFT + second * scale
        parts.append(f'<text x="{x:.1f}" y="{y - 14}" text-anchor="middle" font-size="10">{second} s</text>')
    for i, (tenant, _, count, seconds) in enumerate(LOAD):
        text = f"{tenant}: {count} tasks of {seconds:g} s"
        parts.append(f'<rect x="{LEFT + 200 * i}" y="6" width="10" height="10" fill="{COLOURS[tenant]}"/>')
        parts.append(f'<text x="{LEFT + 14 + 200 * i}" y="15">{text}</text>')
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y}" font-family="sans-serif" font-size="12">'
    )
    ground = f'<rect width="{WIDTH}" height="{y}" fill="white"/>'
    return "\n".join((head, ground, *parts, "</svg>", ""))


if __name__ == "__main__":
    main()
