"""A headless Chromium, driven through its debugging pipe: no port, no driver, no package."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

# Chromium reads commands from descriptor 3 and answers on 4.
_PUT_PIPES_AT_3_AND_4 = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3]]
os.dup2(ends[0], 3)
os.dup2(ends[1], 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
_OPTIONS = (
    "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
    "--no-first-run", "--disable-extensions", "--disable-background-networking", "--hide-scrollbars",
    "--force-device-scale-factor=1",
)  # fmt: skip


class Browser:
    """One tab. Keeps every complaint of the console and every request that is not for the page itself."""

    def __init__(self, *, timeout_s: float = 30) -> None:
        assert CHROMIUM is not None
        self._timeout_s = timeout_s
        self._buffer = b""
        self._number = 0
        self._session = ""
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.url = ""
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        commands_out, self._commands = os.pipe()
        self._answers, answers_in = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-ISc", _PUT_PIPES_AT_3_AND_4, str(commands_out), str(answers_in), CHROMIUM, *_OPTIONS,
             f"--user-data-dir={self._profile.name}"],
            pass_fds=(commands_out, answers_in), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        os.close(commands_out)
        os.close(answers_in)

    def __enter__(self) -> Browser:
        try:
            self._open_tab()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        try:
            self._session = ""
            self._send("Browser.close")
            self._process.wait(10)
        except (OSError, subprocess.TimeoutExpired):
            pass  # ended below
        finally:
            self._end()

    def _open_tab(self) -> None:
        target = self._send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._send(f"{domain}.enable")

    def _end(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # a process group of its own
        self._process.wait(10)
        os.close(self._commands)
        os.close(self._answers)
        self._profile.cleanup()

    def _send(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + self._timeout_s
        while True:
            answer = self._next_message(deadline)
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer)

    def _next_message(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not select.select([self._answers], [], [], left_s)[0]:
                raise TimeoutError("the browser did not answer")
            received = os.read(self._answers, 1 << 20)
            if not received:
                raise OSError("the browser ended")
            self._buffer += received
        text, self._buffer = self._buffer.split(b"\0", 1)
        message: dict[str, Any] = json.loads(text)
        return message

    def _note(self, event: dict[str, Any]) -> None:
        match event["method"], event.get("params", {}):
            case "Runtime.exceptionThrown", params:
                self.complaints.append(json.dumps(params["exceptionDetails"]))
            case "Runtime.consoleAPICalled", params if params["type"] in ("error", "warning", "assert"):
                self.complaints.append(json.dumps(params["args"]))
            case "Log.entryAdded", params if params["entry"]["level"] in ("error", "warning"):
                self.complaints.append(params["entry"]["text"])
            case "Network.requestWillBeSent", params if params["request"]["url"] not in (self.url, "data:,"):
                self.requests.append(params["request"]["url"])

    def open(self, page: Path, *, width: int = 1280, height: int = 1100, is_dark: bool = False) -> None:
        """Show a page and wait until it has drawn itself."""
        self.resize(width, height)
        self.set_dark(is_dark)
        self.url = page.as_uri()
        self._send("Page.navigate", url=self.url)
        self.wait_until("document.documentElement?.dataset.ready !== undefined")

    def resize(self, width: int, height: int) -> None:
        self._send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def set_dark(self, is_dark: bool) -> None:
        scheme = "dark" if is_dark else "light"
        self._send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.next_frame()

    def wait_until(self, condition: str) -> None:
        deadline = time.monotonic() + self._timeout_s
        while not self.ask(condition):
            assert time.monotonic() < deadline, f"never: {condition}; {self.complaints}"
            self.next_frame()

    def next_frame(self) -> None:
        self.ask("new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")

    def ask(self, expression: str) -> Any:
        """Evaluate JavaScript in the page."""
        answer = self._send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def text(self, selector: str) -> str:
        return str(self.ask(f"document.querySelector({json.dumps(selector)}).innerText"))

    def press(self, key: str, *, shift: bool = False) -> None:
        for kind in ("keyDown", "keyUp"):
            self._send("Input.dispatchKeyEvent", type=kind, key=key, modifiers=8 if shift else 0)
        self.next_frame()

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        self._send("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)
        self.next_frame()

    def screenshot(self, *, is_whole: bool = False) -> bytes:
        shot = self._send("Page.captureScreenshot", format="png", captureBeyondViewport=is_whole)
        return base64.b64decode(shot["data"])
