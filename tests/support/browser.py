"""A headless Chromium at a page, as a person would use it. It resolves no name and remembers every request of the page."""

from __future__ import annotations

import base64
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

_NAMES = {"chromium": ("chromium", "chromium-browser", "google-chrome"), "chromedriver": ("chromedriver",)}
Found = TypeVar("Found")


def executable(what: str) -> str | None:
    """Where this machine has ``chromium`` or ``chromedriver``."""
    return next(filter(None, map(shutil.which, _NAMES[what])), None)


class Browser:
    """One window. ``requests``: the address of everything that its pages asked for; ``complaints``: what the console said."""

    def __init__(self) -> None:
        options = webdriver.ChromeOptions()
        options.binary_location = executable("chromium") or ""
        for argument in (
            "--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking",
            "--disable-component-update", "--force-color-profile=srgb", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
            *(["--no-sandbox"] if os.geteuid() == 0 else []),
        ):  # fmt: skip
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
        self._driver = webdriver.Chrome(options=options, service=Service(executable("chromedriver")))
        self._requests: list[str] = []
        self.complaints: list[str] = []

    def open(self, url: str, *, width: int = 1280, height: int = 860, dark: bool = False) -> None:
        """The page in a window of its own, without a key or anything else of earlier pages."""
        self.use("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.use("Emulation.setEmulatedMedia", features=[scheme])
        self._driver.get(url)

    def use(self, command: str, **arguments: Any) -> Any:
        """A command of the DevTools protocol."""
        return self._driver.execute_cdp_cmd(command, arguments)

    def run(self, script: str, *arguments: Any) -> Any:
        return self._driver.execute_script(script, *arguments)

    def reload(self) -> None:
        self._driver.refresh()

    def find(self, selector: str) -> WebElement:
        return self._driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[WebElement]:
        return self._driver.find_elements(By.CSS_SELECTOR, selector)

    def texts(self, selector: str) -> list[str]:
        """The whole text of each match, white space included."""
        found: list[str] = self.run("return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)", selector)
        return found

    def wait(self, what: str, condition: Callable[[], Found], timeout: float = 60) -> Found:
        """The first true value of ``condition``; ``what`` is what is waited for, in words."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                if value := condition():
                    return value
            except StaleElementReferenceException:
                pass  # the page was drawn anew between two looks
            assert time.monotonic() < deadline, (
                f"{what}: not within {timeout:.0f} s; the page: {self.texts('body > :not(script)')}"
            )
            time.sleep(0.02)

    def requests(self) -> list[str]:
        for entry in self._driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                self._requests.append(message["params"]["request"]["url"])
        self.complaints += [entry["message"] for entry in self._driver.get_log("browser")]
        return self._requests

    def screenshot(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(self.use("Page.captureScreenshot", format="png")["data"]))

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._driver.quit()
