"""The page: limits in a browser. `asgi(app)` and `wsgi(app)` are applications to serve or to mount under any prefix;
`celery_limits.web.django` has urls to include. docs/web.md says who may see and do what.
"""

from __future__ import annotations

from .access import Access, Role, basic, proxy
from .adapters import asgi, wsgi
from .http import Request

__all__ = ["Access", "Request", "Role", "asgi", "basic", "proxy", "wsgi"]
