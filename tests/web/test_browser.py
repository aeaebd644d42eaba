"""The page in a real browser, over a real worker: two tenants, one stuck, and what a person does about it at night.

One browser, one worker and one server for all of it. With LIMITS_PICTURES=<directory> it leaves a picture of every
page, light and dark.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.common.keys import Keys

from celery_limits import Limits
from celery_limits.transport.lengths import queue_lengths
from tests.cli.command import ROOT
from tests.redis_server import RedisServer
from tests.waiting import wait_until
from tests.web.browser import DESK, PHONE, Browser, must_run, why_not
from tests.web.night import CONF, build

pytestmark = pytest.mark.timeout(180)
EVIL = "<script>document.title='owned'</script>"
PAGES = ("/", "/keys", "/keys/tenant%3Aacme", "/keys/gpu", "/declared", "/workers", "/queues", "/audit?run=1")


class Night:
    """The shop, its worker, its page and the browser."""

    def __init__(self, server: RedisServer, directory: Path) -> None:
        self.place = directory
        conf = {
            "broker_url": f"limits+redis+socket://{server.socket}",
            "result_backend": f"redis+socket://{server.socket}?virtual_host=1",
            "directory": str(directory), "worker_hijack_root_logger": False,
        }  # fmt: skip
        self.app = build(conf)
        self.limits = Limits(self.app)
        self._environment = {**os.environ, CONF: json.dumps(conf), "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
        self._processes: list[subprocess.Popen[str]] = []
        self.log = directory / "worker.log"
        options = ("worker", "-P", "threads", "-c", "8", "-n", "press@shop", "-l", "info", "--without-mingle")
        with self.log.open("w") as log:
            self._start(*options, "--without-gossip", stdout=log, stderr=log)
        self.url = self.serve()
        wait_until(lambda: "press@shop ready" in self.log.read_text(), "the worker is ready", within=60)

    def _start(self, *arguments: str, **more: Any) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "celery", "-A", "tests.web.night", *arguments]
        process = subprocess.Popen(command, cwd=ROOT, env=self._environment, text=True, **more)
        self._processes.append(process)
        return process

    def serve(self, *options: str) -> str:
        process = self._start("limits", "web", "--port", "0", "--json", *options, stdout=subprocess.PIPE)
        assert process.stdout is not None
        return f"http://127.0.0.1:{json.loads(process.stdout.readline())['port']}"

    def stop(self) -> None:
        for file in self.place.glob("hold-*"):
            file.unlink()
        for process in self._processes:
            process.send_signal(signal.SIGTERM if process is self._processes[0] else signal.SIGINT)
        for process in self._processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()

    def send(self, task: str, tenant: str, task_id: str) -> str:
        self.app.tasks[task].apply_async(kwargs={"tenant": tenant}, task_id=task_id)
        return task_id

    def queued(self, queue: str) -> int:
        with self.app.connection_for_read() as connection:
            return queue_lengths(connection, [queue])[queue]

    def started(self, task_id: str) -> bool:
        return (self.place / f"started-{task_id}").exists()

    def wait_started(self, task_id: str) -> None:
        wait_until(lambda: self.started(task_id), f"{task_id} starts")

    def wait_waiting(self, key: str, count: int) -> None:
        wait_until(lambda: self.limits.status(key).waiting == count, f"{count} wait at {key}")


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Night]:
    if reason := why_not():
        (pytest.fail if must_run() else pytest.skip)(reason)
    with RedisServer() as server:
        directory = tmp_path_factory.mktemp("night")
        for tenant in ("acme", "initech", "pixar"):
            (directory / f"hold-{tenant}").touch()
        night = Night(server, directory)
        try:
            _fill(night)
            yield night
        finally:
            night.stop()


def _fill(night: Night) -> None:
    """Acme is stuck: both its slots are held, and four more wait. Others wait for a turn at the GPU, and for the
    carrier."""
    for task, tenant, name in (
        ("shop.ship", "acme", "acme-0"), ("shop.ship", "acme", "acme-1"), ("shop.ship", "initech", "initech-0"),
        ("shop.render", "pixar", "frame-0"), ("shop.render", "pixar", "frame-1"),
    ):  # fmt: skip
        night.wait_started(night.send(task, tenant, name))
    for i in range(2, 6):
        night.send("shop.ship", "acme", f"acme-{i}")
        night.wait_waiting("tenant:acme", i - 1)
    for i, tenant in enumerate(("pixar", "ilm", "weta", "weta"), 2):
        night.send("shop.render", tenant, f"frame-{i}")
    for i in range(8):
        night.send("shop.call", "globex", f"call-{i}")
    night.wait_waiting("gpu", 4)
    night.limits.store.resize(EVIL, 3)
    night.limits.resize("warehouse", 10, seconds=3600, reason="two docks are closed until six")


@pytest.fixture(scope="module")
def browser(night: Night, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture(autouse=True)
def quiet_console(browser: Browser) -> Iterator[None]:
    """No test ends with a complaint of the browser's: a blocked script, style or request, a file that is not there."""
    browser.scheme("light")
    browser.complaints()
    yield
    assert browser.complaints() == []


def test_from_the_overview_to_the_worker_that_holds_the_key_in_two_clicks(night: Night, browser: Browser) -> None:
    browser.go(f"{night.url}/")
    browser.wait_text("keys at capacity, longest wait ")
    browser.click("tenant:acme")
    assert "acme-0" in browser.text
    browser.click("press@shop")
    assert browser.driver.current_url.startswith(f"{night.url}/workers#press%40shop")
    row = next(row.text for row in browser.all("tbody tr") if "acme-0" in row.text)
    assert "shop.ship" in row
    assert "tenant:acme" in row


def test_resize_lets_the_next_one_run(night: Night, browser: Browser) -> None:
    browser.go(f"{night.url}/keys/tenant%3Aacme")
    browser.submit("resize", size="3", for_="1h", reason="acme pays for three")
    browser.wait_text("Resized.")
    night.wait_started("acme-2")
    browser.wait_text("acme pays for three")
    assert night.limits.status("tenant:acme").size == 3


def test_pause_keeps_tasks_out_and_resume_lets_them_in(night: Night, browser: Browser) -> None:
    night.send("shop.ship", "globex", "globex-0")
    night.wait_started("globex-0")
    night.limits.store.pause("tenant:globex")
    night.limits.store.resume("tenant:globex")
    browser.go(f"{night.url}/keys/tenant%3Aglobex")
    browser.submit("pause", reason="a bad release")
    browser.wait_text("Nothing enters; what runs, runs on.")
    night.send("shop.ship", "globex", "globex-1")
    night.wait_waiting("tenant:globex", 1)
    assert not night.started("globex-1")
    browser.go(f"{night.url}/keys?pattern=globex")
    browser.find("button[aria-label='Resume tenant:globex']").click()
    night.wait_started("globex-1")


def test_run_now_and_cancel_are_seen_by_the_worker(night: Night, browser: Browser) -> None:
    browser.go(f"{night.url}/tasks/acme-4")
    assert "Waits at tenant:acme" in browser.text
    browser.submit("run", reason="the customer is on the phone")
    night.wait_started("acme-4")
    assert not night.started("acme-3"), "nobody else was let through"
    browser.go(f"{night.url}/keys/tenant%3Aacme")
    assert "1 task was let through past this limit" in browser.text
    browser.go(f"{night.url}/tasks/acme-5")
    browser.submit("cancel", reason="sent twice")
    wait_until(lambda: night.app.AsyncResult("acme-5").state == "REVOKED", "acme-5 ends as revoked")
    browser.go(f"{night.url}/audit")
    assert "the customer is on the phone" in browser.text
    assert "sent twice" in browser.text


def test_a_paused_queue_is_not_fetched_until_it_is_resumed(night: Night, browser: Browser) -> None:
    browser.go(f"{night.url}/queues")
    browser.find("button[aria-label='Pause the queue celery']").click()
    # The click returns before the server has answered: a task sent now could still be fetched.
    wait_until(lambda: browser.all("button[aria-label='Resume the queue celery']"), "the queue is shown as paused")
    assert "paused" in browser.find("tbody tr").text
    night.send("shop.ship", "umbrella", "umbrella-0")
    wait_until(lambda: night.queued("celery") == 1, "the task stays in its queue")
    assert not night.started("umbrella-0")
    browser.find("button[aria-label='Resume the queue celery']").click()
    night.wait_started("umbrella-0")


def test_the_page_follows_by_itself(night: Night, browser: Browser) -> None:
    browser.go(f"{night.url}/keys/gpu")
    heading = (
        "return [...document.querySelectorAll('.tiles dt')].find(e => e.textContent == 'Waiting')"
        ".nextElementSibling.textContent"
    )
    before = int(browser.driver.execute_script(heading))
    browser.driver.execute_script("window.stayed = true")
    night.send("shop.render", "weta", "frame-6")
    wait_until(lambda: int(browser.driver.execute_script(heading)) == before + 1, "the page shows it", within=20)
    assert browser.driver.execute_script("return window.stayed"), "without loading the page again"


def test_a_key_named_like_a_script_is_only_text(night: Night, browser: Browser) -> None:
    browser.go(f"{night.url}/keys?pattern=script")
    assert EVIL in browser.text
    browser.find("tbody a.key").click()
    assert EVIL in browser.find("h1").text
    assert "owned" not in browser.driver.title.replace(EVIL, "")


def test_role_read_has_no_form(night: Night, browser: Browser) -> None:
    users = night.place / "users"
    users.write_text("guest:pw:read\n")
    users.chmod(0o600)
    url = night.serve("--credentials", str(users))
    browser.go(url.replace("http://", "http://guest:pw@") + "/")
    browser.go(f"{url}/keys/tenant%3Aacme")
    assert "guest · read" in browser.text
    assert browser.all("form[method=post]") == []
    status = browser.driver.execute_async_script(
        "fetch('/keys/tenant%3Aacme/pause', {method: 'POST'}).then(r => arguments[0](r.status))"
    )
    assert status == 403
    assert "403" in "".join(browser.complaints()), "the browser says so in its console"


def test_nothing_is_asked_from_elsewhere(night: Night, browser: Browser) -> None:
    browser.requested()
    for path in PAGES:
        browser.go(night.url + path)
    assert {url for url in browser.requested() if not url.startswith(night.url)} == set()


def test_by_keyboard_alone(night: Night, browser: Browser) -> None:
    browser.go(f"{night.url}/")
    active = browser.driver.switch_to
    browser.find("body").send_keys(Keys.TAB)
    assert active.active_element.text == "Skip to content"
    active.active_element.send_keys(Keys.ENTER)
    for _ in range(40):
        active.active_element.send_keys(Keys.TAB)
        if active.active_element.text == "tenant:acme":
            break
    active.active_element.send_keys(Keys.ENTER)
    wait_until(lambda: "tenant%3Aacme" in browser.driver.current_url, "the key is open")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everybody_can_use_every_page(night: Night, browser: Browser, scheme: str) -> None:
    """Checked with axe-core; no page is wider than a phone."""
    pictures = os.environ.get("LIMITS_PICTURES")
    browser.scheme(scheme)
    found: dict[str, Any] = {}
    for path in (*PAGES, "/tasks/acme-3", "/keys/nothing"):
        name = {"/": "overview", "/keys": "keys", "/keys/tenant%3Aacme": "key", "/keys/gpu": "key-fair"}.get(
            path, path.strip("/").partition("?")[0].replace("/", "-").replace("tasks-acme-3", "task")
        )
        browser.resize(DESK)
        browser.go(night.url + path)
        found[name] = browser.violations()
        if pictures and name != "keys-nothing":
            browser.picture(Path(pictures) / f"{name}-{scheme}.png")
        browser.resize(PHONE)
        if browser.overflows():
            found[name].append("wider than a phone")
        if pictures and name in ("overview", "keys", "key"):
            browser.picture(Path(pictures) / f"{name}-phone-{scheme}.png")
    browser.resize(DESK)
    assert {name: problems for name, problems in found.items() if problems} == {}
    browser.complaints()  # a page that there is not is one
