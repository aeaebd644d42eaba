"""The page under a prefix: in Starlette and FastAPI, in Flask, in Django, and served by its own command."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from flask import Flask
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient
from werkzeug.middleware.dispatcher import DispatcherMiddleware
from werkzeug.test import Client

from celery_limits import Limits
from celery_limits.web import asgi, wsgi
from tests.cli.command import ROOT, Command
from tests.cli.counter import Counter


def _links_stay_under(prefix: str, text: str) -> None:
    links = re.findall(r'(?:href|src|action|hx-get)="([^"#]+)', text)
    assert len(links) > 8
    assert [link for link in links if not link.startswith(prefix + "/")] == []


@pytest.mark.parametrize("kind", ["starlette", "fastapi"])
def test_mounted_in_an_asgi_application(limits: Limits, busy: Counter, kind: str) -> None:
    inner = asgi(limits.app, access="operate")
    outer: Any = Starlette(routes=[Mount("/ops/limits", inner)])
    if kind == "fastapi":
        outer = FastAPI()
        outer.mount("/ops/limits", inner)
    page = TestClient(outer)
    _check(page, busy, "/ops/limits")


def _check(page: Any, busy: Counter, prefix: str) -> None:
    busy.limits.store.resize("a/b", 3)
    for path in ("/", "/keys", "/keys/packers", "/tasks/ship-2", "/keys/a%2Fb", "/declared", "/audit"):
        answer = page.get(prefix + path)
        assert answer.status_code == 200, (path, answer.text)
        _links_stay_under(prefix, answer.text)
    assert page.get(f"{prefix}/static/style.css").status_code == 200
    answer = page.post(f"{prefix}/keys/packers/pause", data={"reason": "x"}, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, f"{prefix}/keys/packers?done=pause")
    assert busy.limits.status("packers").paused


def test_mounted_in_flask(limits: Limits, busy: Counter) -> None:
    flask = Flask("outer")
    flask.wsgi_app = DispatcherMiddleware(  # type: ignore[method-assign]
        flask.wsgi_app, {"/ops/limits": wsgi(limits.app, access=lambda request: ("operate", "flo"))}
    )
    _check(_Flask(flask.test_client()), busy, "/ops/limits")
    assert busy.limits.changes()[0].by == "flo"


class _Flask:
    """Its client by the names of the others."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def get(self, path: str) -> Any:
        return self._client.get(path)

    def post(self, path: str, *, data: dict[str, str], follow_redirects: bool) -> Any:
        return self._client.post(path, data=data, follow_redirects=follow_redirects)


def test_closed_by_default_wherever_it_is_mounted(limits: Limits) -> None:
    assert TestClient(Starlette(routes=[Mount("/l", asgi(limits.app))])).get("/l/").status_code == 403
    assert Client(wsgi(limits.app)).get("/", environ_base={"REMOTE_ADDR": "192.0.2.9"}).status_code == 403
    assert Client(wsgi(limits.app)).get("/", base_url="http://localhost").status_code == 403, "no address of the peer"


@pytest.mark.parametrize("root", ["", "/ops/limits"])
def test_the_command_serves_it_on_this_machine(command: Command, busy: Counter, root: str) -> None:
    arguments = ["limits", "web", "--port", "0", "--json", *(["--root-path", root] if root else [])]
    process = subprocess.Popen(
        [sys.executable, "-m", "celery", *arguments],
        cwd=ROOT, env={**command.environment, "PYTHONUNBUFFERED": "1"}, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        told = process.stdout.readline()
        port = int(re.search(r'"port": (\d+)', told)[1])  # type: ignore[index]
        with httpx.Client(base_url=f"http://127.0.0.1:{port}") as page:
            text = page.get(f"{root}/").text
            assert "keys at capacity" in text
            assert page.post(f"{root}/keys/packers/pause").status_code == 303
            assert (
                page.post(f"{root}/keys/packers/pause", headers={"origin": "https://evil.example"}).status_code == 403
            )
            assert page.get(f"{root}/", headers={"host": "evil.example"}).status_code == 403
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(20)
    assert busy.limits.status("packers").paused


DJANGO = """
import sys, json
import django
from django.conf import settings
from tests.cli.shop import app
app.set_default()
app.set_current()
settings.configure(
    SECRET_KEY="x", DEBUG=False, ALLOWED_HOSTS=["*"], ROOT_URLCONF="tests.web.django_urls", USE_TZ=True,
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions"],
    MIDDLEWARE=["django.contrib.sessions.middleware.SessionMiddleware", "django.middleware.csrf.CsrfViewMiddleware",
                "django.contrib.auth.middleware.AuthenticationMiddleware"],
    LOGIN_URL="/login/", PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"],
)
django.setup()
from django.core.management import call_command
call_command("migrate", verbosity=0)
from django.contrib.auth.models import User
from django.test import Client
User.objects.create_user("guest", password="x")
User.objects.create_user("ann", password="x", is_staff=True)
said = {}
def client(name=None):
    found = Client(enforce_csrf_checks=True)
    if name:
        assert found.login(username=name, password="x")
    return found
nobody = client().get("/ops/limits/")
said["nobody"] = [nobody.status_code, nobody["Location"]]
said["guest"] = client("guest").get("/ops/limits/").status_code
ann = client("ann")
for path in ("/", "/keys", "/keys/packers", "/tasks/ship-2", "/audit", "/keys/a%2Fb", "/static/style.css"):
    answer = ann.get("/ops/limits" + path)
    said[path] = [answer.status_code, answer.content.decode()]
said["forged"] = ann.post("/ops/limits/keys/packers/pause").status_code
import re
token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', said["/keys/packers"][1])[1]
with_token, crossing = {"csrfmiddlewaretoken": token}, {"sec-fetch-site": "cross-site"}
foreign = ann.post("/ops/limits/keys/packers/pause", with_token, headers=crossing)
said["foreign"] = foreign.status_code
real = ann.post("/ops/limits/keys/packers/pause", {"csrfmiddlewaretoken": token, "reason": "from django"})
said["real"] = [real.status_code, real["Location"]]
print(json.dumps(said))
"""


def test_included_in_django(command: Command, busy: Counter) -> None:
    busy.limits.store.resize("a/b", 3)
    done = subprocess.run(
        [sys.executable, "-c", DJANGO], cwd=Path(ROOT), env=command.environment, capture_output=True, text=True,
        check=False, timeout=90,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    import json  # noqa: PLC0415

    said = json.loads(done.stdout.splitlines()[-1])
    assert said["nobody"] == [302, "/login/?next=/ops/limits/"]
    assert said["guest"] == 403
    for path in ("/", "/keys", "/keys/packers", "/tasks/ship-2", "/audit", "/keys/a%2Fb"):
        assert said[path][0] == 200, (path, said[path])
        _links_stay_under("/ops/limits", said[path][1])
    assert said["/static/style.css"][0] == 200
    assert (said["forged"], said["foreign"]) == (403, 403)
    assert said["real"] == [303, "/ops/limits/keys/packers?done=pause"]
    (change,) = busy.limits.changes()
    assert (change.by, change.via, change.reason) == ("ann", "web", "from django")
