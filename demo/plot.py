"""The plot: bodies that ran under each key over time, with its limit; and the calls of the API, with its rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .ledger import Entry, Run, runs_of, steps_of
from .verdict import limit_steps

__all__ = ["draw"]

COLOURS = ("#d1495b", "#66a182", "#2e86ab", "#edae49", "#6d597a")
LIMIT = "#222222"


def draw(entries: Sequence[Entry], sizes: Mapping[str, int], rate: float, burst: int, files: Sequence[Path]) -> None:
    """Writes the same picture into each of the files, as what its name ends with."""
    import matplotlib  # noqa: PLC0415  (takes a second to import, when the show is over)

    matplotlib.use("Agg")
    from matplotlib import pyplot  # noqa: PLC0415

    first = next((entry.at for entry in entries if entry.what == "sent"), entries[0].at)
    last = entries[-1].at - first
    figure, axes = pyplot.subplots(len(sizes) + 1, sharex=True, figsize=(10, 9), layout="constrained")
    for axis, (key, size), colour in zip(axes, sizes.items(), COLOURS, strict=False):
        _running(axis, entries, key, size, colour, first)
    _calls(axes[-1], entries, rate, burst, first, last)
    for entry in entries:
        if entry.what == "killed":
            _mark_kill(axes, entry.at - first)
    axes[-1].set_xlim(0, last)
    axes[-1].set_xlabel("seconds")
    figure.suptitle("Tasks running under each limit, as their bodies noted it")
    for file in files:
        figure.savefig(file, dpi=120)
    pyplot.close(figure)


def _running(axis: Any, entries: Sequence[Entry], key: str, size: int, colour: str, first: float) -> None:
    runs = runs_of(entries)
    tenants = sorted({run.tenant for run in runs if key in run.keys})
    if len(tenants) > 1:
        _shares(axis, runs, key, tenants, first, entries[-1].at)
    steps = [(first, 0), *steps_of(runs, key), (entries[-1].at, 0)]
    times, counts = [at - first for at, _ in steps], [count for _, count in steps]
    if len(tenants) < 2:
        axis.fill_between(times, counts, step="post", color=colour, alpha=0.45, linewidth=0)
    line, width = (colour, 1.0) if len(tenants) < 2 else (LIMIT, 0.4)
    axis.step(times, counts, where="post", color=line, linewidth=width)
    limits = limit_steps(entries, key, size)
    limits.append((entries[-1].at, limits[-1][1]))
    times, sizes = [at - first for at, _ in limits], [limit for _, limit in limits]
    axis.step(times, sizes, where="post", color=LIMIT, ls="--", lw=1.5)
    axis.set_ylim(0, max(sizes) + 1)
    axis.set_title(f"{key}, limit {' then '.join(map(str, sizes[:-1]))}", loc="left", fontsize=10)
    axis.yaxis.get_major_locator().set_params(integer=True)


def _shares(axis: Any, runs: Sequence[Run], key: str, tenants: Sequence[str], first: float, last: float) -> None:
    """What each tenant has of the key, one above the other, in the colours of their own plots."""
    moments = sorted({first, last, *(at for at, _ in steps_of(runs, key))})
    below = [0] * len(moments)
    for tenant, colour in zip(tenants, COLOURS, strict=False):
        running, steps = [], [(first, 0), *steps_of([run for run in runs if run.tenant == tenant], key)]
        for at in moments:
            while len(steps) > 1 and steps[1][0] <= at:
                steps.pop(0)
            running.append(steps[0][1])
        above = [low + count for low, count in zip(below, running, strict=True)]
        times = [at - first for at in moments]
        axis.fill_between(times, below, above, step="post", color=colour, alpha=0.6, linewidth=0, label=tenant)
        below = above
    axis.legend(loc="upper right", ncols=len(tenants), fontsize=8, frameon=False)


def _calls(axis: Any, entries: Sequence[Entry], rate: float, burst: int, first: float, last: float) -> None:
    began = sorted({run.task_id: run.began - first for run in reversed(runs_of(entries))}.values())
    axis.step([0.0, *began], range(len(began) + 1), where="post", color=COLOURS[-1], linewidth=1.5)
    axis.plot([0, last], [burst, burst + rate * last], color=LIMIT, ls="--", lw=1.5)
    axis.set_ylim(0, len(began) * 1.15 + 1)
    axis.set_title(f"carrier-api, calls so far; at most {rate:g} a second and {burst} at once", loc="left", fontsize=10)


def _mark_kill(axes: Any, at: float) -> None:
    for axis in axes:
        axis.axvline(at, color="#c00000", lw=1.5)
    axes[0].annotate("SIGKILL of a worker", (at, 1), xycoords=("data", "axes fraction"), xytext=(4, 4),
                     textcoords="offset points", color="#c00000", fontsize=9)  # fmt: skip
