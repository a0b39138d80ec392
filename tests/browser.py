"""A headless Chromium for tests, driven by the DevTools protocol over a pipe: JSON messages that end in NUL."""

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

SECONDS = 60  # for any one answer: a loaded machine starts Chromium slowly
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)


def find_chromium() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class BrowserError(Exception):
    """Chromium does not answer, or answers with an error."""


class Browser:
    """One page of one Chromium, with everything that it has told so far in `events`."""

    def __enter__(self) -> "Browser":
        self.events: list[dict[str, Any]] = []
        self._profile = tempfile.mkdtemp(prefix="xmlpreck-chromium-")
        hears, self._write = os.pipe()
        self._read, says = os.pipe()
        self._pending = b""
        self._n_sent = 0
        self._session: str | None = None

        def take_places() -> None:
            # The protocol wants 3 to hear and 4 to say; via higher numbers, so that neither overwrites the other.
            high = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (hears, says)]
            for end, place in zip(high, (3, 4), strict=True):
                os.dup2(end, place)

        self._process = subprocess.Popen(
            [str(find_chromium()), *FLAGS, f"--user-data-dir={self._profile}", "about:blank"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(3, 4),
            preexec_fn=take_places,
            start_new_session=True,
        )
        os.close(hears)
        os.close(says)
        try:
            target = self.call("Target.createTarget", url="about:blank")["targetId"]
            self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Network", "Log"):
                self.call(f"{domain}.enable")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)  # the group that was started here, and no other
        self._process.wait(SECONDS)
        os.close(self._read)
        os.close(self._write)
        shutil.rmtree(self._profile, ignore_errors=True)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and wait for its answer."""
        self._n_sent += 1
        message = {"id": self._n_sent, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + SECONDS
        while (answer := self._next(deadline, method)).get("id") != self._n_sent:
            self.events.append(answer)
        if "error" in answer:
            raise BrowserError(f"{method}: {answer['error']['message']}")
        return dict(answer["result"])

    def wait_for(self, event: str) -> None:
        """Wait until an event is told that was not told before."""
        deadline = time.monotonic() + SECONDS
        while self.events[-1:] == [] or self.events[-1].get("method") != event:
            self.events.append(self._next(deadline, event))

    def _next(self, deadline: float, wanted: str) -> dict[str, Any]:
        while b"\0" not in self._pending:
            ready, _, _ = select.select([self._read], [], [], max(deadline - time.monotonic(), 0))
            part = os.read(self._read, 1 << 20) if ready else b""
            if not part:
                raise BrowserError(f"no answer from Chromium while waiting for {wanted}")
            self._pending += part
        message, _, self._pending = self._pending.partition(b"\0")
        return dict(json.loads(message))

    def open(self, page: Path | str, width: int, height: int, scheme: str) -> None:
        """Show a file or an address in a window of that size, light or dark; a narrow one is a phone."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.events.clear()
        self.call("Page.navigate", url=page if isinstance(page, str) else page.resolve().as_uri())
        if not self.told("Page.loadEventFired"):
            self.wait_for("Page.loadEventFired")

    def told(self, method: str) -> list[dict[str, Any]]:
        """The events of that name since the page was opened."""
        return [event["params"] for event in self.events if event.get("method") == method]

    def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression in the page."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        if "exceptionDetails" in answer:
            raise BrowserError(answer["exceptionDetails"]["exception"].get("description", script))
        return answer["result"].get("value")

    def wait_until(self, script: str) -> None:
        """Wait until a JavaScript expression is true in the page."""
        deadline = time.monotonic() + SECONDS
        while not self.evaluate(script):
            if time.monotonic() > deadline:
                raise BrowserError(f"never true: {script}")
            time.sleep(0.02)

    def click(self, selector: str) -> None:
        """Click the middle of the first element of a CSS selector."""
        x, y = self.evaluate(f"""(() => {{
            const element = document.querySelector({json.dumps(selector)});
            element.scrollIntoView({{block: "center"}});
            const box = element.getBoundingClientRect();
            return [box.left + box.width / 2, box.top + box.height / 2];
        }})()""")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def type(self, text: str) -> None:
        """Type into the element that has the focus."""
        self.call("Input.insertText", text=text)

    def press(self, key: str, code: int, text: str = "") -> None:
        """Press a key by its name and its Windows key code."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, text=text)

    def screenshot(self, path: Path) -> None:
        """The whole page as PNG."""
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(answer["data"]))
