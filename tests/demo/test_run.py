"""The demo itself, shorter than for people and with a longer lease: it kills a worker, ends by itself, all is well."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PATIENCE = 220
"""Seconds; it takes twenty, most of them for the lease to lapse."""
LEASE = "12"
"""Seconds. On a machine that runs many tests at once a short lease may lapse though its worker lives."""

SHOW = """
import io, sys
from rich.console import Console
from demo.play import KeyView, View
from demo.screen import live
view = View(
    3.5, {"acme": 4, "birch": 2}, {"acme": 1},
    [KeyView("tenant:acme", "3", 2, 7), KeyView("carrier-api", "10/s", 0, 0)],
    {"one": "KILLED", "two": "runs 2"}, ["  3.4 s  SIGKILL: worker one is dead"],
)
with live(Console(force_terminal=True, width=120)) as show:
    show(view)
"""


@pytest.mark.long
@pytest.mark.timeout(PATIENCE + 20)
def test_it_kills_a_worker_and_keeps_every_promise(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "demo", "--orders", "16", "--lease", LEASE, "--out", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "verdict: all 9 guarantees kept" in done.stdout
    assert "16 of 16 orders shipped" in done.stdout
    assert "SIGKILL: worker" in done.stdout
    assert "\x1b" not in done.stdout, "no terminal, no control characters"
    assert {path.name for path in tmp_path.iterdir()} >= {"running.png", "running.svg", "ledger.jsonl"}


def test_in_a_terminal_it_draws_bars_slots_lines_and_the_kill(tmp_path: Path) -> None:
    """In a process of its own, since the shop reads its directory when it is imported."""
    drawn = subprocess.run(
        [sys.executable, "-c", SHOW],
        cwd=ROOT, capture_output=True, text=True, check=True, timeout=60,
        env={**os.environ, "LIMITS_DEMO": str(tmp_path), "PYTHONIOENCODING": "utf-8", "TERM": "xterm-256color"},
    ).stdout  # fmt: skip
    assert "\x1b[" in drawn
    for text in ("1/4 shipped", "━", "■■", "□", "●●●●●●●", "KILLED", "runs 2", "SIGKILL: worker one is dead"):
        assert text in drawn, text
