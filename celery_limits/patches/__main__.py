"""Prints every patch, as the table in docs/design.md."""

from celery_limits.patches.table import table

print(table())  # noqa: T201
