"""Runs the tests of a suite on one side: our transport or kombu's. A test that hangs or crashes is an outcome too.

pytest runs in the suite's environment, with a private Redis for each shard. Its plugin notes what happens as it
happens; when pytest dies or stands still, the test under way is noted as lost, and the rest is started anew.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.bench.rounds import say
from tests.redis_server import RedisServer
from tests.upstream.sources import Sources
from tests.upstream.suites import Suite

__all__ = ["PREFIX", "Outcome", "Side"]

PREFIX = "limits+"
SITE = Path(__file__).parent / "site"
_PATIENCE = 60.0
"""Seconds beyond a test's timeout after which pytest itself counts as stuck."""
_PAUSE = 0.5


@dataclass(slots=True)
class Outcome:
    """The worst of a test's phases; `text` is what pytest said of it."""

    kind: str = "passed"
    seconds: float = 0.0
    text: str = ""

    @property
    def is_good(self) -> bool:
        return self.kind in ("passed", "skipped", "xfailed", "xpassed")

    def add(self, kind: str, seconds: float, text: str) -> None:
        self.seconds += seconds
        if kind != "passed" and self.is_good:
            self.kind, self.text = kind, text


@dataclass(slots=True)
class Side:
    """`scheme` is the broker's: `redis` is kombu's side, any other is ours."""

    suite: Suite
    sources: Sources
    scheme: str
    notes: Path
    outcomes: dict[str, Outcome] = field(default_factory=dict)

    @property
    def ours(self) -> bool:
        return self.scheme != "redis"

    def collect(self) -> list[str]:
        with RedisServer(port=(port := _free_port()), bind="127.0.0.1"):
            notes = self._notes("collect")
            self._pytest(port, notes, [*self.suite.paths, "--collect-only", "-q"]).wait()
        found = [line["collected"] for line in _read(notes) if "collected" in line]
        if not found:
            raise SystemExit(f"{self.suite.name}: nothing collected; see {notes.with_suffix('.log')}")
        return list(found[0])

    def run(self, tests: Sequence[str], shards: int | None = None) -> None:
        """Adds the outcomes of these tests; a test that ran before keeps the better one."""
        parts = [list(tests[n :: shards or self.suite.shards]) for n in range(shards or self.suite.shards)]
        with ThreadPoolExecutor(len(parts)) as pool:
            for outcomes in pool.map(self._run_part, [part for part in parts if part]):
                for test, outcome in outcomes.items():
                    if test not in self.outcomes or outcome.is_good:
                        self.outcomes[test] = outcome

    def _run_part(self, tests: list[str]) -> dict[str, Outcome]:
        done: dict[str, Outcome] = {}
        with RedisServer(port=(port := _free_port()), bind="127.0.0.1") as server:
            while rest := [test for test in tests if test not in done]:
                notes = self._notes(f"{port}-{len(done)}")
                chosen = notes.with_suffix(".tests")
                chosen.write_text("\n".join(rest))
                self._watch(self._pytest(port, notes, [f"@{chosen}"]), notes)
                fresh = _outcomes(_read(notes))
                if not fresh:
                    raise SystemExit(f"{self.suite.name}: no test ran; see {notes.with_suffix('.log')}")
                done |= fresh
                with server.client() as client:
                    client.flushall()
        return done

    def _pytest(self, port: int, notes: Path, arguments: list[str]) -> subprocess.Popen[bytes]:
        fixed = ["-p", "limits_upstream", "-v", "--color=no", "-o", f"cache_dir={self.notes / 'cache'}", "-W", "ignore"]
        with notes.with_suffix(".log").open("ab") as log:
            return subprocess.Popen(
                [self.sources.python, "-m", "pytest", *fixed, *self.suite.options, *arguments],
                cwd=self.sources.suites[self.suite.package],
                env=self._environment(port, notes),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _environment(self, port: int, notes: Path) -> dict[str, str]:
        binaries = str(self.sources.python.parent)
        given = {
            **{name: value for name, value in os.environ.items() if not name.startswith("PYTEST")},
            "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(SITE),
            "REDIS_HOST": "127.0.0.1",
            "REDIS_PORT": str(port),
            "REDIS_6379_TCP": str(port),
            "TEST_BROKER": f"{self.scheme}://127.0.0.1:{port}/2",
            "TEST_BACKEND": f"redis://127.0.0.1:{port}/1",
            "LIMITS_UPSTREAM_NOTES": str(notes),
            "LIMITS_UPSTREAM_TIMEOUT": str(self.suite.timeout),
        }
        if self.ours:
            given["LIMITS_UPSTREAM_IMPORT"] = "1"
            if self.suite.package == "kombu" and self.scheme.startswith(PREFIX):
                given["LIMITS_UPSTREAM_PREFIX"] = PREFIX
        if self.suite.swap:
            given["LIMITS_UPSTREAM_SWAP"] = "1"
        return given

    def _watch(self, process: subprocess.Popen[bytes], notes: Path) -> None:
        """Until it ends, or nothing was noted for so long that it never will."""
        while process.poll() is None:
            time.sleep(_PAUSE)
            last = notes.stat().st_mtime if notes.exists() else notes.with_suffix(".log").stat().st_mtime
            if time.time() - last > self.suite.timeout + _PATIENCE:
                say(f"  {self.suite.name} {self.scheme}://: stuck, started anew")
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def _notes(self, name: str) -> Path:
        self.notes.mkdir(parents=True, exist_ok=True)
        return self.notes / f"{self.suite.name}-{self.scheme}-{name}.jsonl"


def _read(notes: Path) -> list[dict[str, Any]]:
    if not notes.exists():
        return []
    lines = notes.read_text().splitlines()
    return [json.loads(line) for line in lines]


def _outcomes(lines: list[dict[str, Any]]) -> dict[str, Outcome]:
    """Of every test that began. One that was run again by its own wish has the outcome of the last time."""
    outcomes: dict[str, Outcome] = {}
    begun: str | None = None
    for line in lines:
        if "begin" in line:
            begun = line["begin"]
            outcomes[begun] = Outcome()
        elif "end" in line:
            begun = None
        elif "test" in line:
            if line["outcome"] == "rerun":
                outcomes[line["test"]] = Outcome()
            else:
                outcomes[line["test"]].add(line["outcome"], line["seconds"], line["text"])
    if begun is not None:
        outcomes[begun] = Outcome("lost", 0.0, "pytest died or stood still in it")
    return outcomes


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
