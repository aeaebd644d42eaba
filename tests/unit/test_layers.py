"""A module imports from its own package, or from packages below it; docs/architecture.md draws the layers."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import celery_limits

ROOT = Path(celery_limits.__file__).parent
LAYERS = (
    ("errors", "printable", "secret"),
    ("declare",),
    ("message",),
    ("telemetry",),
    ("embedded",),
    ("store",),
    ("lease",),
    ("transport",),
    ("dispatch",),
    ("app",),
    ("metrics",),
    ("patches",),
    ("worker",),
    ("testing",),
    ("cli",),
    ("web",),
    ("install",),
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
LOADED_WHEN_CALLED = {"cli/web.py": "web"}
"""The command that serves the page is one of the command line's, and loads the page when it is called."""
FILES = [file for file in sorted(ROOT.rglob("*.py")) if file != ROOT / "__init__.py"]


def imports_of(file: Path) -> set[str]:
    """Absolute names of the modules that a file imports, wherever in it, types included."""
    package = ("celery_limits", *file.parent.relative_to(ROOT).parts)
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            found |= {f"{module}.{alias.name}" for alias in node.names}
    return found


def layer_of(name: str) -> str:
    return name.split(".", maxsplit=1)[0]


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_a_module_imports_only_from_its_own_layer_and_below(file: Path) -> None:
    own = layer_of(str(file.relative_to(ROOT).with_suffix("")).replace("/", "."))
    ours = {name.removeprefix("celery_limits.") for name in imports_of(file) if name.startswith("celery_limits.")}
    upward = {name for name in ours if layer_of(name) != own and LEVEL.get(layer_of(name), -1) >= LEVEL[own]}
    called = LOADED_WHEN_CALLED.get(str(file.relative_to(ROOT)))
    assert {name for name in upward if layer_of(name) != called} == set()


def test_every_package_has_a_layer() -> None:
    parts = {layer_of(str(file.relative_to(ROOT).with_suffix("")).replace("/", ".")) for file in FILES}
    assert parts == LEVEL.keys()


@pytest.mark.parametrize("packages", [("declare",), ("store", "telemetry", "embedded")], ids=str)
def test_lower_layers_know_no_celery(packages: tuple[str, ...]) -> None:
    files = [file for file in FILES if file.relative_to(ROOT).parts[0] in packages]
    assert {(str(file), name) for file in files for name in imports_of(file) if layer_of(name) == "celery"} == set()


PUBLISHER = """
import sys
from celery import Celery
Celery(broker="redis://localhost:1/0", set_as_current=False).connection_for_write().transport
plain = {*sys.modules}
from celery_limits import Concurrency
app = Celery(broker="limits+redis://localhost:1/0", set_as_current=False)
@app.task(limits=[Concurrency("x", 1)], shared=False)
def task(): ...
task.signature()
app.amqp.send_task_message
app.connection_for_write().transport
print(*sorted(n for n in {*sys.modules} - plain if n.startswith(("celery.worker", "celery.concurrency", "rich"))))
"""


def test_a_publisher_loads_no_worker() -> None:
    """Of Celery's worker and pools it loads what a plain Celery app loads; and nothing that draws tables."""
    run = subprocess.run([sys.executable, "-c", PUBLISHER], capture_output=True, text=True, check=True, timeout=60)
    assert run.stdout.split() == []
