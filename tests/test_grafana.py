"""The dashboard in examples/ asks for metrics that we export, and shows all that we export of what happens."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from celery_limits.metrics.collector import GAUGES
from celery_limits.metrics.prometheus import METRICS, PREFIX

DASHBOARD = json.loads((Path(__file__).parent.parent / "examples" / "grafana.json").read_text())
OF_HISTOGRAM = ("_bucket", "_sum", "_count")


def queries(part: Any) -> Iterator[str]:
    """Every expression, wherever it stands."""
    if isinstance(part, dict):
        yield from (value for name, value in part.items() if name in ("expr", "query") and isinstance(value, str))
        part = list(part.values())
    if isinstance(part, list):
        for one in part:
            yield from queries(one)


def asked() -> set[str]:
    names = (name for query in queries(DASHBOARD) for name in re.findall(rf"\b{PREFIX}_\w+", query))
    return {name.removeprefix(f"{PREFIX}_") for name in names}


def exported() -> set[str]:
    histograms = {name for name in METRICS if not name.endswith("_total")}
    return {*GAUGES, *METRICS.keys() - histograms, *(name + part for name in histograms for part in OF_HISTOGRAM)}


def test_every_metric_that_it_asks_for_is_one_that_we_export() -> None:
    assert asked() - exported() == set()


def test_it_shows_every_histogram_and_counter() -> None:
    shown = {re.sub("_bucket$", "", name) for name in asked()}
    assert METRICS.keys() - shown == set()


def test_panels_have_their_own_places_and_numbers() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24
