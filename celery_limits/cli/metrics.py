"""`metrics`: what Prometheus scrapes about keys and queues, served by a process of its own, or printed once."""

from __future__ import annotations

import sys
import threading

import click
from celery.bin.base import CeleryOption

from .base import Failure, Session, limits_command

__all__ = ["metrics"]


@limits_command("metrics")
@click.option("--port", type=click.IntRange(0, 65535), default=9808, show_default=True, cls=CeleryOption,
              help="Where to serve it; 0 takes a free port.")  # fmt: skip
@click.option("--address", cls=CeleryOption, help="To whom it is open. Default: limits_metrics_address.")
@click.option("--once", is_flag=True, cls=CeleryOption, help="Print it instead, and end.")
def metrics(session: Session, port: int, address: str | None, once: bool) -> None:
    """Serve the state of all keys and queues for Prometheus.

    One such process is enough. What happens in a worker (how long tasks waited, how many were admitted) the workers
    serve themselves: set limits_metrics_port for that.
    """
    from prometheus_client import CollectorRegistry, generate_latest  # noqa: PLC0415

    from celery_limits.metrics.collector import KeyCollector  # noqa: PLC0415
    from celery_limits.metrics.prometheus import serve  # noqa: PLC0415  (an extra: says so where it is missing)

    registry = CollectorRegistry()
    registry.register(KeyCollector(session.limits))
    if once or session.as_json:
        samples = [
            {"name": sample.name, "labels": dict(sample.labels), "value": sample.value}
            for family in registry.collect()
            for sample in family.samples
        ]
        text = generate_latest(registry).decode().rstrip("\n")
        # Prometheus reads labels as they are and knows none of our escapes, which are for a person at a terminal.
        if session.as_json or sys.stdout.isatty():
            session.say(samples, text)
        else:
            click.echo(text)
        return
    address = address or session.limits.settings.metrics_address
    try:
        port = serve(port, address, registry)
    except OSError as error:
        raise Failure(f"{address}:{port} can't be opened: {error}") from None
    session.say({"address": address, "port": port}, f"Serving metrics at http://{address}:{port}/metrics")
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        return
