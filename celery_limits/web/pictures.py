"""Small drawings, as numbers for SVG: bars, sparklines, and the graph of the order in which keys are taken. No
styles inside."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from celery_limits.declare.chain import Declared
from celery_limits.declare.template import name_of
from celery_limits.store.status import Status

from .index import SPAN, Sample

__all__ = ["Bar", "Graph", "Spark", "bar_of", "order_graph", "spark_of"]

POINTS = 60


class Bar(NamedTuple):
    """How much of a key is taken, in percent; `over`: more than its size."""

    percent: float
    text: str
    over: bool


def bar_of(status: Status) -> Bar | None:
    if status.kind == "rate":
        if status.tokens is None or not status.burst:
            return None
        used = max(0, status.burst - status.tokens)
        return Bar(100 * used / status.burst, f"{status.tokens} of {status.burst} tokens left", False)
    if not isinstance(status.limit, int):
        return None
    if status.limit == 0:
        return Bar(100.0 if status.held else 0.0, f"{status.held} of 0 slots held", status.held > 0)
    share = 100 * status.held / status.limit
    return Bar(min(100.0, share), f"{status.held} of {status.limit} slots held", status.held > status.limit)


class Spark(NamedTuple):
    """Waiting tasks over the last 15 minutes, the newest at the right."""

    width: int
    height: int
    area: str
    line: str
    text: str


def spark_of(samples: Sequence[Sample], *, wide: bool = False) -> Spark | None:
    if len(samples) < 2:
        return None
    width, height = (600, 80) if wide else (96, 24)
    end = samples[-1].at
    buckets: dict[int, int] = {}
    for sample in samples:
        place = POINTS - 1 - int((end - sample.at) / SPAN * POINTS)
        if place >= 0:
            buckets[place] = max(buckets.get(place, 0), sample.waiting)
    most = max(buckets.values())
    points = [
        (round(place * width / (POINTS - 1), 1), round(height - 2 - (height - 4) * waiting / max(1, most), 1))
        for place, waiting in sorted(buckets.items())
    ]
    if len(points) == 1:
        points.append((points[0][0] - 3, points[0][1]))
        points.sort()
    line = " ".join(f"{x},{y}" for x, y in points)
    area = f"{points[0][0]},{height} {line} {points[-1][0]},{height}"
    return Spark(
        width, height, area, line, f"waiting: {samples[-1].waiting} now, {most} at most in the last 15 minutes"
    )


class Node(NamedTuple):
    name: str
    x: int
    y: int
    width: int


class Edge(NamedTuple):
    path: str


class Graph(NamedTuple):
    width: int
    height: int
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    pairs: tuple[tuple[str, str], ...]


ROW, GAP, CHARACTER, HIGH = 52, 64, 8, 32


def order_graph(chains: Iterable[Declared]) -> Graph | None:
    """Which key is held while which is waited for, as declared: an arrow for each neighbours of a chain. Rates are
    held by nobody."""
    pairs: list[tuple[str, str]] = []
    names: list[str] = []
    for chain in chains:
        held = [name_of(limit.key) if callable(limit.key) else str(limit.key) for limit in chain.limits if limit.holds]
        names += [name for name in held if name not in names]
        pairs += [pair for pair in pairwise(held) if pair not in pairs and pair[0] != pair[1]]
    if not pairs:
        return None
    linked = [name for name in names if any(name in pair for pair in pairs)]
    layers = dict.fromkeys(linked, 0)
    for _ in linked:  # the longest way to each; a circle ends after as many rounds as there are keys
        for before, after in pairs:
            layers[after] = max(layers[after], min(layers[before] + 1, len(linked)))
    return _drawn(layers, pairs)


def _drawn(layers: dict[str, int], pairs: list[tuple[str, str]]) -> Graph:
    columns = sorted(set(layers.values()))
    x, nodes = 8, dict[str, Node]()
    height = 0
    for column in columns:
        members = [name for name, layer in layers.items() if layer == column]
        width = max(len(name) for name in members) * CHARACTER + 24
        for row, name in enumerate(members):
            nodes[name] = Node(name, x, 8 + row * ROW, width)
        height = max(height, 8 + len(members) * ROW)
        x += width + GAP
    edges = []
    for before, after in pairs:
        a, b = nodes[before], nodes[after]
        start, end, y1, y2 = a.x + a.width, b.x - 6, a.y + HIGH // 2, b.y + HIGH // 2
        bend = (start + end) // 2
        edges.append(Edge(f"M{start},{y1} C{bend},{y1} {bend},{y2} {end},{y2}"))
    return Graph(x - GAP + 8, height, tuple(nodes.values()), tuple(edges), tuple(pairs))
