"""A headless Chromium to look at a page with: by the DevTools protocol over two pipes, with nothing to install."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
_DEADLINE_S = 60.0
_FLAGS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-sandbox",  # as root there is none; the page is our own
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--hide-scrollbars",
)


def program() -> str | None:
    """The browser of this machine; None where there is none."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


_START = """
import fcntl, os, sys
far = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3]]
for place, number in zip((3, 4), far):
    os.dup2(number, place)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""The protocol has its pipes at 3 and 4."""


class Tab:
    """One page of a browser: what it is asked, and what it said meanwhile."""

    def __init__(self, write: int, read: int) -> None:
        self._write, self._read = write, read
        self._left, self._number, self._session = b"", 0, ""
        self.events: list[dict[str, Any]] = []
        """Messages that answer nothing, in order."""
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **params: Any) -> Any:
        """What a command of the protocol returns. Raises RuntimeError for an error, TimeoutError."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + _DEADLINE_S
        while True:
            found = self._next(until)
            if found.get("id") == self._number:
                if "error" in found:
                    raise RuntimeError(f"{method}: {found['error']['message']}")
                return found["result"]
            self.events.append(found)

    def _next(self, until: float) -> dict[str, Any]:
        while b"\0" not in self._left:
            if not select.select([self._read], [], [], max(0.0, until - time.monotonic()))[0]:
                raise TimeoutError(f"the browser did not answer within {_DEADLINE_S:g} s")
            found = os.read(self._read, 1 << 20)
            if not found:
                raise RuntimeError("the browser ended")
            self._left += found
        message, _, self._left = self._left.partition(b"\0")
        decoded: dict[str, Any] = json.loads(message)
        return decoded

    def show(self, path: Path, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Open a file in a window of that size, until the page says that it can be used."""
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])
        for url in ("about:blank", path.resolve().as_uri()):
            self.ask("Page.navigate", url=url)
        self.wait_for("document.documentElement?.dataset.interactiveMs")

    def wait_for(self, expression: str) -> Any:
        """The value of an expression once it is no nothing. Raises TimeoutError."""
        until = time.monotonic() + _DEADLINE_S
        while time.monotonic() < until:
            if found := self.value(expression):
                return found
            time.sleep(0.02)
        raise TimeoutError(f"{expression} is nothing after {_DEADLINE_S:g} s")

    def value(self, expression: str) -> Any:
        """Of an expression in the page, awaited. Raises RuntimeError for what it throws."""
        found = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(found["exceptionDetails"].get("exception", {}).get("description", expression))
        return found["result"].get("value")

    def press(self, key: str, *, shift: bool = False) -> None:
        """A key, as from a keyboard."""
        text = {"text": key} if len(key) == 1 else {}
        for kind in ("keyDown", "keyUp"):
            self.ask(
                "Input.dispatchKeyEvent", type=kind, key=key, modifiers=8 * shift, **(text if kind == "keyDown" else {})
            )

    def picture(self, *, whole: bool = False) -> bytes:
        """A PNG of the window, or of the whole page."""
        return base64.b64decode(self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"])

    def complaints(self) -> list[str]:
        """Errors and warnings of the console, exceptions, and what the security policy refused."""
        self.value("0")  # so that all before it has come
        said = []
        for event in self.events:
            params = event.get("params", {})
            if event["method"] == "Runtime.exceptionThrown":
                said.append(str(params["exceptionDetails"].get("exception", {}).get("description")))
            elif event["method"] == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
                said.append(params["entry"]["text"])
            elif event["method"] == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
                said.append(json.dumps(params["args"]))
        return said

    def requested(self) -> list[str]:
        """The addresses that were asked for, data in the page itself left out."""
        urls = [
            event["params"]["request"]["url"] for event in self.events if event["method"] == "Network.requestWillBeSent"
        ]
        return [url for url in urls if not url.startswith(("data:", "blob:"))]


@contextmanager
def browser(found: str) -> Iterator[Tab]:
    """A tab of a new browser, with a profile of its own, which ends with the block."""
    from_us, to_browser = os.pipe()
    from_browser, to_us = os.pipe()
    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as profile:
        numbers = [str(from_us), str(to_us)]
        command = [sys.executable, "-c", _START, *numbers, found, *_FLAGS, f"--user-data-dir={profile}"]
        with subprocess.Popen(
            command, pass_fds=(from_us, to_us), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            os.close(from_us)
            os.close(to_us)
            try:
                yield Tab(to_browser, from_browser)
            finally:
                os.close(to_browser)
                os.close(from_browser)
                process.terminate()
                process.wait(_DEADLINE_S)
