"""All patches, for the documentation and the tests."""

from __future__ import annotations

from . import asynpool, celery_app, commands, control, mingle, panel, publishing, request
from .registry import Patch, patches_of

__all__ = ["all_patches", "table"]

MODULES = (celery_app, publishing, control, commands, mingle, panel, asynpool, request)


def all_patches() -> list[Patch]:
    return [found for module in MODULES for found in patches_of(module)]


def table() -> str:
    rows = ["| replaced | in | why | Celery | upstream |", "|---|---|---|---|---|"]
    for module in MODULES:
        name = module.__name__.rpartition(".")[2]
        for found in patches_of(module):
            shown = found.target.partition(":")[2]
            rows.append(f"| `{shown}` | `patches.{name}` | {found.why} | {found.celery} | {found.upstream} |")
    return "\n".join(rows)
