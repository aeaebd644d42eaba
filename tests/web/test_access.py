"""Who may see and do what: roles, credentials, proxies, and requests that another site made a browser send."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from celery_limits import LimitError, Limits
from celery_limits.web import Request, asgi, basic, proxy
from celery_limits.web.access import hash_password
from tests.cli.command import Command
from tests.cli.counter import Counter


def client(limits: Limits, access: Any, **more: Any) -> TestClient:
    return TestClient(asgi(limits.app, access=access), **more)


def local(limits: Limits, **headers: str) -> TestClient:
    return client(limits, None, base_url="http://127.0.0.1:5556", client=("127.0.0.1", 50000), headers=headers)


# -- roles -----------------------------------------------------------------------------------------------------------


def test_read_has_no_form_that_changes_anything_and_gets_403(limits: Limits, busy: Counter) -> None:
    page = client(limits, lambda _: "read")
    for path in ("/", "/keys", "/keys/packers", "/tasks/pack-1", "/queues", "/audit?run=1"):
        text = page.get(path).text
        assert 'method="post"' not in text, path
    for path in ("/keys/packers/pause", "/tasks/pack-1/run", "/audit/repair", "/queues/celery/pause"):
        answer = page.post(path)
        assert answer.status_code == 403
        assert "Your role is read" in answer.text
    assert limits.changes() == []


@pytest.mark.parametrize("answer", ["none", "admin", None, ("root", "x"), True, 7])
def test_what_is_no_role_sees_nothing(limits: Limits, answer: Any) -> None:
    page = client(limits, lambda _: answer)
    for path in ("/", "/keys", "/api/keys", "/nothing"):
        assert page.get(path).status_code == 403
        assert "packers" not in page.get(path).text
    assert page.post("/keys/packers/pause").status_code == 403


def test_the_access_is_asked_with_the_request(limits: Limits) -> None:
    def access(request: Request) -> Any:
        return "read" if request.headers.get("X-Team") == "ops" else "none"

    assert client(limits, access).get("/", headers={"x-team": "ops"}).status_code == 200
    assert client(limits, access).get("/").status_code == 403


# -- closed by default -----------------------------------------------------------------------------------------------


def test_this_machine_may_operate_and_nobody_else_sees_anything(limits: Limits, busy: Counter) -> None:
    assert local(limits).post("/keys/packers/pause").status_code == 200
    assert limits.status("packers").paused
    elsewhere = client(limits, None, base_url="http://127.0.0.1:5556", client=("192.0.2.7", 50000))
    assert elsewhere.get("/").status_code == 403


@pytest.mark.parametrize("header", ["X-Forwarded-For", "Forwarded", "X-Real-IP", "Via", "X-Forwarded-Host"])
def test_what_comes_through_a_proxy_is_from_elsewhere(limits: Limits, header: str) -> None:
    assert local(limits).get("/", headers={header: "127.0.0.1"}).status_code == 403


def test_another_name_that_leads_here_is_refused(limits: Limits) -> None:
    """DNS rebinding: a page of someone else's, open in a browser on this machine, under a name that now means this
    machine."""
    assert local(limits).get("/", headers={"host": "evil.example:5556"}).status_code == 403
    assert local(limits).get("/", headers={"host": "localhost:5556"}).status_code == 200


def test_another_address_without_credentials_is_refused(command: Command, limits: Limits) -> None:
    assert "add --credentials FILE" in command("web", "--host", "0.0.0.0", "--port", "0", code=1).err
    assert command.json("web", "--host", "192.0.2.1", code=1)["error"]["kind"] == "NoCredentials"


# -- requests of other sites -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://testserver.evil.example"},
        {"origin": "http://testserver:81"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "same-origin", "origin": "https://evil.example"},
        {"sec-fetch-site": "cross-site", "origin": "http://testserver"},
    ],
)
def test_a_change_that_another_site_asks_for_is_refused(
    page: TestClient, busy: Counter, headers: dict[str, str]
) -> None:
    assert page.post("/keys/packers/pause", headers=headers).status_code == 403
    assert not busy.limits.status("packers").paused


@pytest.mark.parametrize("headers", [{}, {"origin": "http://testserver", "sec-fetch-site": "same-origin"}])
def test_a_change_from_our_page_or_from_no_browser_is_made(
    page: TestClient, busy: Counter, headers: dict[str, str]
) -> None:
    assert page.post("/keys/packers/pause", headers=headers).status_code == 200


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS"])
def test_other_methods_are_not_answered(page: TestClient, method: str) -> None:
    assert page.request(method, "/keys/packers/pause").status_code == 405


def test_looking_at_the_address_of_an_action_does_nothing(page: TestClient, busy: Counter) -> None:
    assert page.get("/keys/packers/pause").status_code == 404, "a key of that name, which there is not"
    assert not busy.limits.status("packers").paused


def test_a_large_body_is_refused(page: TestClient, busy: Counter) -> None:
    assert page.post("/keys/packers/pause", content=b"x" * 70_000).status_code == 413


# -- headers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/keys", "/nothing", "/api/keys", "/static/style.css", "/static/htmx.min.js"])
def test_every_answer_has_a_strict_policy(page: TestClient, path: str) -> None:
    answer = page.get(path)
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["x-frame-options"] == "DENY"


def test_no_page_has_script_or_style_inside_or_asks_elsewhere(page: TestClient, busy: Counter) -> None:
    for path in ("/", "/keys", "/keys/packers", "/tasks/ship-2", "/declared", "/workers", "/queues", "/audit"):
        text = page.get(path).text
        assert re.findall(r"<script(?![^>]*src=\"/static/htmx.min.js\")", text) == []
        assert "<style" not in text
        assert " style=" not in text
        assert re.findall(r"\son\w+=", text) == []
        assert re.findall(r"(?:src|href|action)=\"(?!/|#)", text) == []


@pytest.mark.parametrize("name", ["../site.py", "..%2fsite.py", "nothing.js", "", "../templates/base.html"])
def test_only_known_files_are_served(page: TestClient, name: str) -> None:
    assert page.get(f"/static/{name}").status_code == 404


# -- credentials -----------------------------------------------------------------------------------------------------


def sign(name: str, password: str) -> dict[str, str]:
    return {"authorization": "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()}


@pytest.fixture
def users(tmp_path: Path) -> Path:
    file = tmp_path / "users"
    file.write_text(f"# the team\nann:{hash_password('s3cret')}:operate\nbob:plain:with colon\nguest:hello:read\n")
    file.chmod(0o600)
    return file


def test_basic_credentials_from_a_file(limits: Limits, busy: Counter, users: Path) -> None:
    page = client(limits, basic(users))
    closed = page.get("/")
    assert (closed.status_code, closed.headers["www-authenticate"][:5]) == (401, "Basic")
    assert page.get("/", headers=sign("ann", "wrong")).status_code == 401
    assert page.get("/", headers=sign("nobody", "")).status_code == 401
    assert page.get("/", headers={"authorization": "Basic !!!"}).status_code == 401
    assert page.get("/", headers={"authorization": "Bearer x"}).status_code == 401
    for _ in range(2):  # the second time it is known
        assert page.get("/", headers=sign("ann", "s3cret")).status_code == 200
    assert page.get("/", headers=sign("bob", "plain:with colon")).status_code == 200
    assert page.post("/keys/packers/pause", headers=sign("bob", "plain:with colon")).status_code == 403, (
        "read by default"
    )
    assert page.post("/keys/packers/pause", headers=sign("guest", "hello")).status_code == 403
    assert page.post("/keys/packers/pause", headers=sign("ann", "s3cret")).status_code == 200
    assert limits.changes()[0].by == "ann"


def test_a_user_who_is_taken_out_of_the_file_is_out_at_once(limits: Limits, users: Path) -> None:
    page = client(limits, basic(users))
    assert page.get("/", headers=sign("ann", "s3cret")).status_code == 200
    users.write_text("guest:hello\n")
    assert page.get("/", headers=sign("ann", "s3cret")).status_code == 401
    users.unlink()
    assert page.get("/", headers=sign("guest", "hello")).status_code == 401


def test_a_file_that_others_may_read_is_refused(users: Path) -> None:
    users.chmod(0o644)
    with pytest.raises(LimitError, match="chmod 600"):
        basic(users)


@pytest.mark.parametrize("line", ["ann", ":x", "ann:", "ann:scrypt$x"])
def test_a_line_that_can_not_be_read_is_named(users: Path, line: str) -> None:
    users.write_text(f"bob:x\n{line}\n")
    with pytest.raises(LimitError, match="line 2"):
        basic(users)


def test_a_header_of_a_trusted_proxy(limits: Limits, busy: Counter) -> None:
    access = proxy("X-User", {"ann": "operate"})
    page = client(limits, access, client=("127.0.0.1", 1))
    assert page.get("/").status_code == 403
    assert page.get("/", headers={"x-user": "bob"}).status_code == 200
    assert page.post("/keys/packers/pause", headers={"x-user": "bob"}).status_code == 403
    assert page.post("/keys/packers/pause", headers={"x-user": "ann"}).status_code == 200
    elsewhere = client(limits, access, client=("192.0.2.7", 1))
    assert elsewhere.get("/", headers={"x-user": "ann"}).status_code == 403
    named = client(limits, proxy("X-User", trusted=("192.0.2.7",)), client=("192.0.2.7", 1))
    assert named.get("/", headers={"x-user": "ann"}).status_code == 200
