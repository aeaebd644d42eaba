"""A real browser, without a screen: Debian's chromium and its driver, found where they are installed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import axe_core_python
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By

from tests.waiting import wait_until

__all__ = ["Browser", "must_run", "why_not"]

AXE = Path(axe_core_python.__file__).parent / "axe.min.js"
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]
DESK, PHONE = (1280, 900), (390, 844)


def why_not() -> str | None:
    missing = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    return f"not installed: {', '.join(missing)}" if missing else None


def must_run() -> bool:
    """Where they could be installed, the tests may not be skipped."""
    return os.environ.get("LIMITS_REQUIRE_BROWSER") == "1"


class Browser:
    def __init__(self, profile: Path) -> None:
        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium") or ""
        for argument in (
            "--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--hide-scrollbars",
            "--disable-background-networking", "--disable-component-update", "--force-device-scale-factor=1",
            f"--user-data-dir={profile}",
        ):  # fmt: skip
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
        self.driver.set_page_load_timeout(30)
        self.resize(DESK)

    def close(self) -> None:
        self.driver.quit()

    def resize(self, size: tuple[int, int]) -> None:
        metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": size == PHONE}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def scheme(self, name: str) -> None:
        """light or dark, as the reader's system has it."""
        features = [{"name": "prefers-color-scheme", "value": name}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def go(self, url: str) -> None:
        self.driver.get(url)

    @property
    def text(self) -> str:
        return self.driver.find_element(By.TAG_NAME, "body").text

    def wait_text(self, part: str) -> None:
        """Until the page says so: a part of it may just be replaced."""

        def says() -> bool:
            try:
                return part in self.text
            except StaleElementReferenceException:
                return False

        wait_until(says, f"the page says {part!r}", within=20)

    def find(self, css: str) -> Any:
        return self.driver.find_element(By.CSS_SELECTOR, css)

    def all(self, css: str) -> list[Any]:
        return self.driver.find_elements(By.CSS_SELECTOR, css)

    def click(self, text: str, within: str = "main") -> None:
        """The link, or what opens a form, that reads like this."""
        xpath = f"//{within}//*[self::a or self::summary or self::button][normalize-space()='{text}']"
        element = self.driver.find_element(By.XPATH, xpath)
        self.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
        element.click()

    def submit(self, action: str, **fields: str) -> None:
        """Opens the form of an action, fills it in and sends it."""
        form = self.find(f"form[action$='/{action}']")
        self.driver.execute_script("const d = arguments[0].closest('details'); if (d) d.open = true", form)
        for name, value in fields.items():
            field = form.find_element(By.NAME, name.rstrip("_"))
            field.clear()
            field.send_keys(value)
        form.find_element(By.TAG_NAME, "button").click()

    def _log(self, kind: str) -> list[dict[str, Any]]:
        driver: Any = self.driver
        return list(driver.get_log(kind))

    def complaints(self) -> list[str]:
        """What is in the console since the last look."""
        return [entry["message"] for entry in self._log("browser") if entry["level"] in ("SEVERE", "WARNING")]

    def requested(self) -> set[str]:
        """The addresses that were asked for since the last look."""
        import json  # noqa: PLC0415

        events = (json.loads(entry["message"])["message"] for entry in self._log("performance"))
        found = (e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent")
        return {url for url in found if url.startswith(("http", "ws"))}

    def violations(self) -> list[str]:
        """What axe-core finds that keeps somebody from using the page."""
        if not self.driver.execute_script("return typeof axe !== 'undefined'"):
            self.driver.execute_script(AXE.read_text("utf-8"))
        found = self.driver.execute_async_script(
            "const done = arguments[arguments.length - 1];"
            "axe.run(document, {runOnly: {type: 'tag', values: arguments[0]}})"
            ".then(r => done(r.violations), e => done([String(e)]))",
            RULES,
        )
        return [
            one if isinstance(one, str) else f"{one['id']}: {[n['html'][:150] for n in one['nodes']]}" for one in found
        ]

    def overflows(self) -> bool:
        """Whether the page is wider than the screen."""
        return bool(self.driver.execute_script("return document.documentElement.scrollWidth > window.innerWidth + 1"))

    def picture(self, file: Path) -> None:
        """The whole page, and not only what fits the screen."""
        height = self.driver.execute_script("return document.documentElement.scrollHeight")
        width = self.driver.execute_script("return window.innerWidth")
        clip = {"x": 0, "y": 0, "width": width, "height": min(height, 2400), "scale": 1}
        options = {"format": "png", "captureBeyondViewport": True, "clip": clip}
        import base64  # noqa: PLC0415

        file.write_bytes(base64.b64decode(self.driver.execute_cdp_cmd("Page.captureScreenshot", options)["data"]))
