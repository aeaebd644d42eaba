"""`celery -A tests.cli.shop limits …` in three ways: called in this process, as a program, and in a terminal.

All go through Celery's own command line. Starting the program takes a second or more, so most tests call it.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pexpect
from celery.bin.celery import celery

from tests.cli.shop import CONF

__all__ = ["ROOT", "Command", "Said"]

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0
"""Seconds that a program may take; it takes one, on a machine that has nothing else to do."""
LINES, COLUMNS = 40, 120


@dataclass(frozen=True)
class Said:
    """What a command printed, and its exit code."""

    out: str
    err: str
    code: int

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def rows(self) -> list[list[str]]:
        """A plain table, split at its columns: two blanks or more."""
        lines = [line.strip() for line in self.out.splitlines() if line.strip()]
        return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in lines]


class Command:
    """`conf` is the shop's configuration."""

    def __init__(self, app: Any, conf: dict[str, Any]) -> None:
        self.app = app
        self.environment = {
            **os.environ,
            CONF: json.dumps(conf),
            "CELERY_APP": "tests.cli.shop",
            "PYTHONPATH": str(ROOT),
            "TERM": "xterm-256color",
        }
        self._celery = str(Path(sys.executable).with_name("celery"))

    def __call__(self, *arguments: str, code: int = 0) -> Said:
        """`limits` with these arguments, called; it must end with this exit code."""
        out, err, ended = io.StringIO(), io.StringIO(), 0
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                celery.main(["limits", *arguments], prog_name="celery", default_map={"app": self.app})
            except SystemExit as end:
                ended = end.code if isinstance(end.code, int) else 0
        return _checked(Said(out.getvalue(), err.getvalue(), ended), code)

    def json(self, *arguments: str, code: int = 0) -> Any:
        return self(*arguments, "--json", code=code).json

    def program(self, *arguments: str, code: int = 0, environment: dict[str, str] | None = None) -> Said:
        """The `celery` that is installed beside this Python, its output a pipe."""
        done = subprocess.run(
            [self._celery, *arguments],
            check=False,
            cwd=ROOT,
            env={**self.environment, **(environment or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        return _checked(Said(done.stdout, done.stderr, done.returncode), code)

    def terminal(self, *arguments: str) -> pexpect.spawn[str]:
        """`celery` with these arguments, in a terminal."""
        return self._spawn(self._celery, *arguments)

    def shell(self) -> pexpect.spawn[str]:
        """A bash of someone who has set up nothing, in a terminal; it finds the same `celery`."""
        return self._spawn("bash", "--norc", "--noprofile")

    def _spawn(self, program: str, *arguments: str) -> pexpect.spawn[str]:
        path = f"{Path(self._celery).parent}{os.pathsep}{os.environ['PATH']}"
        return pexpect.spawn(
            program,
            list(arguments),
            cwd=str(ROOT),
            env={**self.environment, "PATH": path, "COLUMNS": str(COLUMNS), "LINES": str(LINES)},
            encoding="utf-8",
            timeout=PATIENCE,
            dimensions=(LINES, COLUMNS),
            preexec_fn=_heed_ctrl_c,
        )


def _heed_ctrl_c() -> None:
    """A job in the background of a shell without job control ignores it, and so does whatever it starts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _checked(said: Said, code: int) -> Said:
    assert said.code == code, f"exit code {said.code}\n{said.out}\n{said.err}"
    return said
