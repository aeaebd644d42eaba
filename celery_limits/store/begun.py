"""The seal of a ticket whose task has begun: a worker makes it for a retry, and `admit` checks it.

Workers that do not trust headers need it, since any producer can claim to publish a retry. The secret is in the store's
Redis: whoever can read it there can do more than fill a line. The seal is of one ticket, so that a copy of it is good
for the same message alone.
"""

from __future__ import annotations

from hashlib import sha1
from typing import Any

from .errors import translated
from .store import Store

__all__ = ["begun_seal"]


def begun_seal(store: Store, ticket: str) -> str:
    """As lua/include/seal.lua computes it; empty where no worker has made a secret yet."""
    client: Any = store.client
    with translated("begun_seal"):
        secret: bytes | None = client.hget(f"{store.prefix}config", "seal")
    if not secret:
        return ""
    inner = sha1(secret + f"begun:{ticket}".encode("utf-8", "surrogateescape")).hexdigest()
    return sha1(secret + inner.encode()).hexdigest()[:20]
