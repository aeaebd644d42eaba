"""Figures for Prometheus: what limits do in a worker, counted as it happens; and what the store knows, read when asked.

`meter` is what the rest of the package tells, at no cost while nobody measures. `prometheus` keeps the figures, and
needs the extra of that name; `keys` reads the store. docs/metrics.md says what each figure means.
"""

from .meter import Meter, measure_with, meter

__all__ = ["Meter", "measure_with", "meter"]
