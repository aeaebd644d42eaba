"""The limit store on Redis: see `Store` for its verbs and `keys` for what it writes. It knows nothing of Celery."""

from .errors import (
    StoreBroken,
    StoreDenied,
    StoreError,
    StoreFull,
    StoreNoScripts,
    StoreReadOnly,
    StoreTooOld,
    StoreUnavailable,
)
from .policy import Policy
from .store import Store

__all__ = [
    "Policy",
    "Store",
    "StoreBroken",
    "StoreDenied",
    "StoreError",
    "StoreFull",
    "StoreNoScripts",
    "StoreReadOnly",
    "StoreTooOld",
    "StoreUnavailable",
]
