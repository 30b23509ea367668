"""A real Chromium through its driver: the few commands of WebDriver that the tests of the page need."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

START_S = 20.0
WAIT_S = 15.0
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
KEYS = {
    "enter": "\ue007",
    "escape": "\ue00c",
    "tab": "\ue004",
    "down": "\ue015",
    "up": "\ue013",
    "space": " ",
}


def missing_programs() -> str:
    """The reason why there is no browser; empty where there is one."""
    missing = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    return f"no {' and no '.join(missing)}; apt-get install chromium chromium-driver" if missing else ""


class BrowserError(Exception):
    """The driver refused a command."""


class Browser:
    """One window of a headless Chromium that resolves no name: it reaches addresses of this machine only.

    Attributes:
        base: Where links of the page under test begin.
    """

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="inferometer-browser-")
        command = ["chromedriver", "--port=0", "--log-level=SEVERE"]
        environment = {**os.environ, "HOME": self._folder}
        self._driver = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
        )
        self._address = f"http://127.0.0.1:{self._port()}"
        arguments = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--force-color-profile=srgb",
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
            "--no-proxy-server",
            "--ignore-certificate-errors",
            f"--user-data-dir={self._folder}/profile",
            "--window-size=1280,900",
        ]
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": {"binary": shutil.which("chromium"), "args": arguments},
            "goog:loggingPrefs": {"performance": "ALL", "browser": "ALL"},
        }
        try:
            found = self._call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}}, START_S * 3)
        except BaseException:
            self._driver.kill()
            raise
        self._session = f"/session/{found['sessionId']}"

    def _port(self) -> int:
        assert self._driver.stdout is not None
        for line in self._driver.stdout:
            if "started successfully on port" in line:
                return int(line.rstrip().rstrip(".").rsplit(" ", 1)[1])
        raise BrowserError("chromedriver ended at once")

    def _call(self, method: str, path: str, body: Any = None, timeout_s: float = 60.0) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._address + path, data, method=method)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=timeout_s) as answer:
                return json.loads(answer.read())["value"]
        except urllib.error.HTTPError as error:
            raise BrowserError(json.loads(error.read())["value"]["message"]) from error

    def _command(self, method: str, path: str, body: Any = None) -> Any:
        return self._call(method, self._session + path, body)

    def protocol(self, command: str, **parameters: Any) -> Any:
        """Sends a command of Chromium's own protocol."""
        return self._command("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def open(self, url: str) -> None:
        """Opens a page and waits until it has shown its content."""
        self._command("POST", "/url", {"url": url})
        self.wait("return document.body.dataset.ready !== undefined")

    def run(self, script: str, *arguments: Any) -> Any:
        """Runs a script and returns what it returns."""
        return self._command("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def run_async(self, script: str, *arguments: Any) -> Any:
        """Runs a script that passes its result to its last argument."""
        return self._command("POST", "/execute/async", {"script": script, "args": list(arguments)})

    def wait(self, script: str, *arguments: Any, within_s: float = WAIT_S) -> Any:
        """Waits until a script returns something true, and returns that."""
        deadline_s = time.monotonic() + within_s
        while not (found := self.run(script, *arguments)):
            if time.monotonic() > deadline_s:
                raise AssertionError(f"not within {within_s:g} s: {script}")
            time.sleep(0.02)
        return found

    def text(self, selector: str) -> str:
        """The text of the first element that a selector matches, once there is one."""
        script = "const e = document.querySelector(arguments[0]); return e && [e.innerText]"
        found: list[str] = self.wait(script, selector)
        return found[0]

    def texts(self, selector: str) -> list[str]:
        """The texts of all elements that a selector matches."""
        found: list[str] = self.run(
            "return [...document.querySelectorAll(arguments[0])].map((e) => e.innerText)", selector
        )
        return found

    def click(self, selector: str) -> None:
        """Clicks on the first element that a selector matches."""
        found = self._command("POST", "/element", {"using": "css selector", "value": selector})
        self._command("POST", f"/element/{found[_ELEMENT]}/click", {})

    def press(self, *keys: str) -> None:
        """Presses keys, on what has the focus."""
        actions: list[Mapping[str, str]] = []
        for key in keys:
            value = KEYS.get(key, key)
            actions += [{"type": "keyDown", "value": value}, {"type": "keyUp", "value": value}]
        self._command("POST", "/actions", {"actions": [{"type": "key", "id": "keys", "actions": actions}]})

    def look(self, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Sets the size of the window, and what the user prefers."""
        self.protocol(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.protocol("Emulation.setEmulatedMedia", features=[scheme])

    def picture(self, path: Path, *, whole: bool = False) -> None:
        """Writes a picture of the window, or of the whole page."""
        found = self.protocol("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(found["data"]))

    def _log(self, kind: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._command("POST", "/se/log", {"type": kind})
        return found

    def requests(self) -> list[str]:
        """The URLs that were asked for since the last call, without those of the browser's own pages."""
        messages = (json.loads(entry["message"])["message"] for entry in self._log("performance"))
        return [
            message["params"]["request"]["url"]
            for message in messages
            if message["method"] == "Network.requestWillBeSent"
            and not message["params"]["documentURL"].startswith("chrome:")
        ]

    def complaints(self) -> list[str]:
        """What the console has told since the last call: errors of scripts, and what the policy refused."""
        return [entry["message"] for entry in self._log("browser") if entry["level"] == "SEVERE"]

    def close(self) -> None:
        """Ends the browser and its driver."""
        try:
            self._call("DELETE", self._session, timeout_s=10.0)
        except (OSError, BrowserError):
            pass
        finally:
            self._driver.terminate()
            try:
                self._driver.wait(10)
            except subprocess.TimeoutExpired:
                self._driver.kill()
            if self._driver.stdout is not None:
                self._driver.stdout.close()
            shutil.rmtree(self._folder, ignore_errors=True)
