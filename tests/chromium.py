"""A page in a headless Chromium, driven over chromedriver's WebDriver protocol with the standard library alone."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-dev-shm-usage", "--hide-scrollbars"),
    *("--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


class Browser:
    def __init__(self, port: str):
        self.at = f"http://127.0.0.1:{port}"

    def call(self, path: str, body: Any = None, method: str = "POST") -> Any:
        data = None if method != "POST" else json.dumps(body or {}).encode()
        asked = urllib.request.Request(self.at + path, data, {"Content-Type": "application/json"}, method=method)
        with urllib.request.urlopen(asked, timeout=120) as answer:
            return json.load(answer)["value"]

    def start(self, user_data: Path) -> None:
        options = {"binary": CHROMIUM, "args": [*FLAGS, f"--user-data-dir={user_data}"]}
        wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        self.at += "/session/" + self.call("/session", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]

    def open(self, page: Path, *, width: int = 1280, scheme: str = "light") -> None:
        """The page, anew, in a window so wide, by day or by night."""
        self.devtools("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("/url", {"url": page.absolute().as_uri()})

    def devtools(self, command: str, **parameters: Any) -> Any:
        return self.call("/goog/cdp/execute", {"cmd": command, "params": parameters})

    def js(self, script: str, *arguments: Any) -> Any:
        return self.call("/execute/sync", {"script": script, "args": arguments})

    def console(self) -> Sequence[Any]:
        """What was said there since it was last asked."""
        return self.call("/se/log", {"type": "browser"})

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.devtools("Page.captureScreenshot", captureBeyondViewport=True)["data"]))


@contextmanager
def chromium(folder: Path) -> Iterator[Browser]:
    """A browser with a profile of its own in a folder; it ends with the block."""
    assert DRIVER is not None
    with subprocess.Popen([DRIVER, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as driver:
        try:
            assert driver.stdout is not None
            said = next(
                line for line in driver.stdout if "successfully on port" in line
            )  # "... was started successfully on port 37251."
            browser = Browser(said.split("on port")[1].strip(" .\n"))
            browser.start(folder)
            try:
                yield browser
            finally:
                browser.call("", method="DELETE")
        finally:
            driver.terminate()
