"""Nothing that came from elsewhere is ever executed: the package neither evaluates, unpickles nor imports by name.

One exception, which says why it is safe: a refresh function is imported, but only one that a task of this app declares.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest
from celery import Celery

import celery_limits
from celery_limits import FloatingConcurrency, Limits
from celery_limits.errors import LimitError
from celery_limits.worker.refresh import _ask

ROOT = Path(celery_limits.__file__).parent
DANGEROUS = frozenset(
    {"eval", "exec", "compile", "__import__", "import_module", "symbol_by_name", "system", "popen", "loads", "load"}
)
KNOWN = {
    "install.py import_module",  # a module of ours
    "patches/registry.py import_module",  # named by a patch of ours
    "store/aside.py loads",  # plain JSON
    "worker/refresh.py symbol_by_name",  # only what a task of this app declares
    "message/envelope.py loads",  # JSON of our own
    "store/changes.py loads",  # plain JSON
    "web/http.py loads",  # plain JSON
    "store/steering.py loads",  # plain JSON
    "store/status.py loads",  # JSON out of a script
    "store/store.py load",  # a script of ours
    "transport/queue_scripts.py load",  # a script of ours
    "transport/payload.py loads",  # JSON
    "transport/delays.py loads",  # plain JSON
    "cli/health.py symbol_by_name",  # only what a task of this app declares, from the command line
}


def _calls(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        name = function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
        # re.compile and its like are not the builtin
        if name in DANGEROUS and not (name == "compile" and isinstance(function, ast.Attribute)):
            found.add(f"{path.relative_to(ROOT)} {name}")
    return found


def test_the_package_executes_nothing_that_it_is_told() -> None:
    found = set().union(*(_calls(path) for path in ROOT.rglob("*.py")))
    assert found - KNOWN == set()


@pytest.fixture(scope="module")
def limits() -> Limits:
    app = Celery("refreshing", set_as_current=False)
    floating = FloatingConcurrency("f", default=1, refresh="tests.unit.test_no_eval:size", every=1)
    app.task(name="refreshing", shared=False, limits=[floating])(size)
    return Limits(app)


def size() -> int:
    return 7


def test_a_declared_refresh_function_is_called(limits: Limits) -> None:
    assert _ask(limits, "f", "tests.unit.test_no_eval:size") == 7


@pytest.mark.parametrize("name", ["os:abort", "antigravity:geohash", "tests.unit.test_no_eval:limits"])
def test_another_is_neither_called_nor_imported(limits: Limits, name: str) -> None:
    """Whoever named it, in a header or in the store."""
    with pytest.raises(LimitError, match="no task of this app declares"):
        _ask(limits, "f", name)
    assert "antigravity" not in sys.modules
