"""Chromium for tests of pages: opened at a width, by light or by dark, asked and photographed through its
debugging pipe.
"""

import base64
import json
import os
import pathlib
import shutil
import subprocess

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
_OPTIONS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run",
    "--remote-debugging-pipe",
)  # fmt: skip
_NEXT_FRAME = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done())))"


class Browser:
    """One browser with one page. It is ended by `close`."""

    def __init__(self, profile: pathlib.Path):
        ours, theirs = os.pipe(), os.pipe()  # we write to it, it writes to us

        def connect():
            # Away from 3 and 4 first: these are the numbers that the browser reads from and writes to.
            reads, writes = os.dup2(ours[0], 60), os.dup2(theirs[1], 61)
            os.dup2(reads, 3)
            os.dup2(writes, 4)

        command = [CHROMIUM, *_OPTIONS, f"--user-data-dir={profile}", "about:blank"]
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(command, stdout=quiet, stderr=quiet, preexec_fn=connect, close_fds=False)
        os.close(ours[0])
        os.close(theirs[1])
        self._out, self._in = os.fdopen(ours[1], "wb", buffering=0), os.fdopen(theirs[0], "rb", buffering=0)
        self._sent, self._rest, self._session = 0, b"", None
        self.errors: list[str] = []  # that the page has told on its console
        page = next(each for each in self._ask("Target.getTargets")["targetInfos"] if each["type"] == "page")
        self._session = self._ask("Target.attachToTarget", targetId=page["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._ask(f"{domain}.enable")

    def close(self):
        """Ends the browser."""
        self._process.terminate()
        self._process.wait(20)
        self._out.close()
        self._in.close()

    def open(self, page: pathlib.Path, *, width: int, dark: bool = False, scripts: bool = True):
        """Opens a file at a width, by light or by dark, with or without scripts."""
        self.errors.clear()
        self._ask("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self._ask(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}],
        )
        self._ask("Emulation.setScriptExecutionDisabled", value=not scripts)
        self._ask("Page.navigate", url=page.resolve().as_uri())
        self._await("Page.loadEventFired")

    def run(self, script: str):
        """Returns what an expression is in the page."""
        answer = self._ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def move(self, x: float, y: float):
        """Moves the pointer, when what has been scrolled is where it is seen, and waits until the page has seen it."""
        self.run(_NEXT_FRAME)
        self._ask("Input.dispatchMouseEvent", type="mouseMoved", x=x - 1, y=y)
        self._ask("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        self.run(_NEXT_FRAME)

    def press(self, key: str, code: int, text: str = ""):
        """Presses a key; one that has a text types it."""
        for kind in ("keyDown", "keyUp"):
            more = {"text": text} if text and kind == "keyDown" else {}
            self._ask("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **more)

    def photograph(self, *, whole: bool = True) -> bytes:
        """Returns a PNG of the whole page, or of what is in the window."""
        clip = {}
        if whole:
            size = self._ask("Page.getLayoutMetrics")["cssContentSize"]
            clip = {"clip": {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 16_000), "scale": 1}}
        answer = self._ask("Page.captureScreenshot", format="png", captureBeyondViewport=whole, **clip)
        return base64.b64decode(answer["data"])

    def _ask(self, method: str, **parameters) -> dict:
        self._sent += 1
        message = {"id": self._sent, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._out.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._sent:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]

    def _await(self, event: str):
        while self._next().get("method") != event:
            pass

    def _next(self) -> dict:
        """The next message; what goes wrong in the page is noted."""
        while b"\0" not in self._rest:
            part = self._in.read(1 << 20)
            assert part, "the browser has ended"
            self._rest += part
        message, _, self._rest = self._rest.partition(b"\0")
        found = json.loads(message)
        if found.get("method") == "Runtime.exceptionThrown":
            self.errors.append(found["params"]["exceptionDetails"]["text"])
        if found.get("method") == "Log.entryAdded" and found["params"]["entry"]["level"] in ("error", "warning"):
            self.errors.append(found["params"]["entry"]["text"])
        return found
