"""The demo itself, shorter than for people and with a longer lease: it kills a worker, ends by itself, all is well."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pexpect

ROOT = Path(__file__).parents[2]
PATIENCE = 110
LEASE = "8"
"""Seconds. On a machine that runs many tests at once a short lease may lapse though its worker lives."""


def command(out: Path, *options: str) -> list[str]:
    return ["-m", "demo", "--lease", LEASE, "--out", str(out), *options]


def test_it_kills_a_worker_and_keeps_every_promise(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, *command(tmp_path, "--orders", "24")],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "verdict: all 8 guarantees kept" in done.stdout
    assert "24 of 24 orders shipped" in done.stdout
    assert "SIGKILL: worker" in done.stdout
    assert "\x1b" not in done.stdout, "no terminal, no control characters"
    assert {path.name for path in tmp_path.iterdir()} >= {"running.png", "running.svg", "ledger.jsonl"}


def test_it_is_drawn_live_in_a_terminal(tmp_path: Path) -> None:
    child = pexpect.spawn(
        sys.executable, command(tmp_path, "--orders", "8"), cwd=str(ROOT), encoding="utf-8", timeout=PATIENCE,
        dimensions=(45, 120), env={**os.environ, "TERM": "xterm-256color"},
    )  # fmt: skip
    for text in ("SLOTS IN USE", "tenant:acme", "■", "KILLED", "guarantees kept"):
        child.expect_exact(text)
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0
