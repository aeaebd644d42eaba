"""The page in a Django project: `path("limits/", include("celery_limits.web.django"))`.

For staff, which may do all; anyone else is sent to log in. Django's own protection against forged requests is in
force beside ours. `urls(app, access=...)` gives the same for another Celery app than the current one, or with roles
of your own:
`access` gets a `Request` whose `origin` is Django's, with its `user`.
"""

from __future__ import annotations

from typing import Any

from celery import current_app
from django.conf import settings
from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest, HttpResponse
from django.middleware.csrf import get_token
from django.urls import re_path
from django.views.decorators.csrf import csrf_protect

from .access import Access, Role
from .adapters import query_of
from .http import Headers, Request
from .site import Site

__all__ = ["staff", "urlpatterns", "urls"]


FORM = "application/x-www-form-urlencoded"


def staff(request: Request) -> tuple[Role, str] | Role:
    """The access where none is given."""
    user: Any = getattr(request.origin, "user", None)
    if user is None or not (user.is_active and user.is_staff):
        return "none"
    return "operate", user.get_username()


def urls(app: Any = None, access: Access | Role | None = None) -> list[Any]:
    """Patterns to include, under any prefix."""
    sites: list[Site] = []

    @csrf_protect
    def view(request: HttpRequest, path: str) -> HttpResponse:
        if not sites:  # when it is first asked, the app is configured
            sites.append(Site(app or current_app._get_current_object(), access or staff))  # noqa: SLF001
        answer = sites[0].handle(_translated(request, path))
        if answer.status == 403 and access is None and not request.user.is_authenticated:
            return redirect_to_login(request.get_full_path(), settings.LOGIN_URL)
        response = HttpResponse(answer.body, status=answer.status, content_type=answer.kind)
        for name, value in answer.headers:
            response[name] = value
        return response

    return [re_path(r"^(?P<path>(?s:.*))$", view)]


def _translated(request: HttpRequest, path: str) -> Request:
    is_form = request.content_type in (FORM, "multipart/form-data")  # which Django has read for its own protection
    whole = request.path
    prefix = whole[: len(whole) - len(path)].rstrip("/") if path else whole.rstrip("/")
    return Request(
        method=request.method or "GET",
        path=f"/{path}",
        prefix=prefix,
        query=query_of(request.META.get("QUERY_STRING", "")),
        headers=Headers([*request.headers.items(), *([("content-type", FORM)] if is_form else [])]),
        body=request.POST.urlencode().encode() if is_form else request.body,
        client=request.META.get("REMOTE_ADDR", ""),
        csrf=get_token(request),
        origin=request,
    )


urlpatterns = urls()
