"""The directives `settings-reference` and `worker-flags`: the settings model and the worker's flags, as tables.

What they print is read from the code: names, types and defaults from the model itself, the sentences from the
docstrings below its fields, which only the source has.
"""

from __future__ import annotations

import ast
import inspect
from typing import Any, Literal, get_args, get_origin

from celery import Celery

import celery_limits
from celery_limits.app.settings import PREFIX, Settings
from celery_limits.secret import SecretUrl

__all__ = ["descriptions", "flags_table", "settings_table", "setup"]


def descriptions() -> dict[str, str]:
    """Each field's docstring, on one line."""
    (model,) = ast.parse(inspect.getsource(Settings)).body
    assert isinstance(model, ast.ClassDef)
    found: dict[str, str] = {}
    for field, below in zip(model.body, model.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            assert isinstance(field.target, ast.Name)
            found[field.target.id] = " ".join(str(below.value.value).split())
    return found


def settings_table() -> str:
    """All settings, in the order of the model, as a Markdown table."""
    said = descriptions()
    lines = ["| setting | in Django | type | default | |", "|---|---|---|---|---|"]
    for name, field in Settings.model_fields.items():
        full = f"{PREFIX}{name}"
        cells = (f"`{full}`", f"`CELERY_{full.upper()}`", _type(field.annotation), f"`{field.default!r}`", said[name])
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def flags_table() -> str:
    """The options that `celery worker` gets, and the setting that each of them overrides."""
    lines = ["| flag | overrides | |", "|---|---|---|"]
    for option in sorted(Celery(set_as_current=False).user_options["worker"], key=lambda option: option.opts[0]):
        flag = option.opts[0]
        if flag.startswith("--limits-"):
            part = flag.removeprefix("--limits-").replace("-", "_")
            (setting,) = [name for name in Settings.model_fields if name in (part, f"{part}_url")]
            lines.append(f"| `{flag} {option.metavar}` | `{PREFIX}{setting}` | {option.help} |")
    return "\n".join(lines)


def _type(annotation: Any) -> str:
    """In words: `None` and bounds are left out, since the default and the sentence say them."""
    if get_origin(annotation) is Literal:
        return " or ".join(f"`{choice!r}`" for choice in get_args(annotation))
    if isinstance(annotation, type):
        return {float: "seconds", int: "number", bool: "bool", str: "text", SecretUrl: "text"}[annotation]
    return _type(get_args(annotation)[0])  # of `X | None` and `Annotated[X, ...]`


def setup(app: Any) -> dict[str, Any]:
    from sphinx.util.docutils import SphinxDirective  # noqa: PLC0415  (the tests read the tables without Sphinx)

    def directive(table: Any) -> type:
        class Table(SphinxDirective):  # type: ignore[misc]
            def run(self) -> list[Any]:
                self.env.note_dependency(inspect.getfile(Settings))
                return self.parse_text_to_nodes(table())  # type: ignore[no-any-return]

        return Table

    app.add_directive("settings-reference", directive(settings_table))
    app.add_directive("worker-flags", directive(flags_table))
    return {"version": celery_limits.__version__, "parallel_read_safe": True}
