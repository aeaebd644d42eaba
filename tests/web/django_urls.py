"""The urls of a Django project that includes the page."""

from __future__ import annotations

from django.urls import include, path

urlpatterns = [path("ops/limits/", include("celery_limits.web.django"))]
