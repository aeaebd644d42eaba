"""The store knows nothing of Celery: neither it nor what it imports of ours imports celery or kombu."""

from __future__ import annotations

import ast
from pathlib import Path

import celery_limits

ROOT = Path(celery_limits.__file__).parent


def _imports(path: Path) -> set[str]:
    """Absolute names of all modules that a file imports, wherever in it."""
    package = ("celery_limits", *path.parent.relative_to(ROOT).parts)
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join([*package[: len(package) - node.level + 1], *([node.module] if node.module else [])])
            module = base if node.level else node.module or ""
            found |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
    return found


def _file_of(module: str) -> Path | None:
    path = ROOT.joinpath(*module.split(".")[1:])
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


def test_the_store_imports_no_celery() -> None:
    todo, seen, foreign = set(ROOT.glob("store/*.py")), set[Path](), set[str]()
    while todo - seen:
        file = (todo - seen).pop()
        seen.add(file)
        for module in _imports(file):
            if module.split(".")[0] in ("celery", "kombu"):
                foreign.add(f"{file.relative_to(ROOT)} imports {module}")
            # The package itself is imported by everyone and activates what there is to activate.
            if module.startswith("celery_limits.") and (ours := _file_of(module)):
                todo.add(ours)
    assert foreign == set()
    assert len(seen) > 10
