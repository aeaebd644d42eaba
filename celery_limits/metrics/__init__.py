"""Figures for Prometheus: what limits do in a worker, counted as it happens; and what the store knows, read when asked.

The rest of the package reports to `telemetry.meter`, at no cost while nobody measures. `prometheus` keeps the figures,
and needs the extra of that name; `collector` reads the store. docs/metrics.md says what each figure means.
"""

from celery_limits.telemetry.meter import Meter, measure_with, meter

__all__ = ["Meter", "measure_with", "meter"]
