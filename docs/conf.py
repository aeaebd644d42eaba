"""Sphinx: `make docs` builds these pages as HTML, and takes every warning for an error."""

from __future__ import annotations

import sys
from pathlib import Path

from celery_limits import __version__

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "celery_limits"
author = "the authors of celery_limits"
release = version = __version__
extensions = ["myst_parser", "settings_reference"]
html_theme = "furo"
html_title = f"celery_limits {version}"
html_static_path = ["_static"]
html_show_sphinx = False
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3
