"""Headless Chromium, driven over its DevTools port: a page is opened, looked at, asked, and pictured.

Takes `chromium-headless-shell`, `chromium` or `google-chrome` from PATH. It may reach this machine alone.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from support.waiting import NOT_TRUE, eventually, eventually_sync

NO_CHROMIUM = "no Chromium on PATH; Debian: chromium-headless-shell"
_NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    "--headless",
    "--remote-debugging-port=0",
    "--no-first-run",
    "--disable-gpu",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)


def chromium() -> str | None:
    return next((found for name in _NAMES if (found := shutil.which(name)) is not None), None)


class Page:
    """One tab. What a script of the page fails at, or logs as an error, is in `complaints`."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, password: str | None = None) -> None:
        """`password` is what its user types where a server asks for one."""
        self._password = password
        self.asked_for_passwords = 0
        self._socket = socket
        self._asked: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._reading = asyncio.get_running_loop().create_task(self._read())
        self._sending: set[asyncio.Task[dict[str, Any]]] = set()
        self.complaints: list[str] = []

    async def close(self) -> None:
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)

    async def _read(self) -> None:
        async for message in self._socket:
            told = message.json()
            if "id" in told:
                self._asked.pop(told["id"]).set_result(told)
            elif told["method"] == "Fetch.requestPaused":
                await self._send("Fetch.continueRequest", requestId=told["params"]["requestId"])
            elif told["method"] == "Fetch.authRequired":
                self.asked_for_passwords += 1
                typed = {"response": "ProvideCredentials", "username": "whoever", "password": self._password}
                request = told["params"]["requestId"]
                await self._send("Fetch.continueWithAuth", requestId=request, authChallengeResponse=typed)
            elif told["method"] == "Runtime.exceptionThrown":
                self.complaints.append(str(told["params"]["exceptionDetails"]))
            elif told["method"] == "Log.entryAdded" and told["params"]["entry"]["level"] == "error":
                self.complaints.append(str(told["params"]["entry"]))

    async def _send(self, method: str, **params: object) -> None:
        """Does not wait for the answer."""
        task = asyncio.get_running_loop().create_task(self.do(method, **params))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def do(self, method: str, **params: object) -> dict[str, Any]:
        number = len(self._asked) + 1
        while number in self._asked:
            number += 1
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": params})
        async with asyncio.timeout(60):
            told = await answer
        assert "error" not in told, f"{method}: {told['error']}"
        result: dict[str, Any] = told["result"]
        return result

    async def open(self, url: str) -> None:
        for domain in ("Page", "Runtime", "Log"):
            await self.do(f"{domain}.enable")
        if self._password is not None:
            await self.do("Fetch.enable", handleAuthRequests=True)
        await self.do("Page.navigate", url=url)

    async def set_screen(self, *, width: int = 1200, height: int = 900, is_dark: bool = False) -> None:
        """As on a screen of this size, of a reader who likes it dark or not."""
        await self.do(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        await self.do("Emulation.setEmulatedMedia", features=[scheme])

    async def ask(self, script: str) -> Any:
        """The value of an expression in the page."""
        told = await self.do("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in told, told["exceptionDetails"]
        return told["result"].get("value")

    async def text(self, selector: str = "body") -> str:
        return str(await self.ask(f"document.querySelector({selector!r})?.innerText ?? ''"))

    async def until_text(self, *words: str, selector: str = "body") -> str:
        """Once all of the words stand there."""

        async def is_there() -> bool:
            shown = await self.text(selector)
            return all(word in shown for word in words)

        try:
            await eventually(is_there, timeout=60)
        except AssertionError:
            at = await self.ask("`${location.href}, ${document.readyState}`")
            shown = f"{await self.text(selector)}\nof {at}; complaints: {self.complaints}"
            raise AssertionError(f"{NOT_TRUE} a minute: not all of {words} came, but: {shown}") from None
        return await self.text(selector)

    async def picture(self, path: Path) -> None:
        path.write_bytes(base64.b64decode((await self.do("Page.captureScreenshot", format="png"))["data"]))


class Browser:
    """One process; each page is a tab of it. Blocking."""

    def __init__(self) -> None:
        program = chromium()
        assert program is not None, NO_CHROMIUM
        flags = [*_FLAGS, "--no-sandbox"] if os.geteuid() == 0 else list(_FLAGS)
        self._folder = tempfile.TemporaryDirectory(prefix="stratalog-browser-", ignore_cleanup_errors=True)
        self._process = subprocess.Popen(
            [program, *flags, f"--user-data-dir={self._folder.name}", "about:blank"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # what is on PATH may be a script, which the browser outlives
        )
        port_file = Path(self._folder.name) / "DevToolsActivePort"
        try:
            eventually_sync(lambda: self._process.poll() is not None or _is_whole(port_file), timeout=60)
            assert self._process.poll() is None, f"{program} ended at once: {self._process.returncode}"
            self._address = f"http://127.0.0.1:{port_file.read_text().split()[0]}"
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._folder.cleanup()

    @asynccontextmanager
    async def page(self, url: str, password: str | None = None) -> AsyncIterator[Page]:
        async with aiohttp.ClientSession(self._address) as http:
            async with http.put("/json/new") as answer:
                tab = await answer.json(content_type=None)
            async with http.ws_connect(tab["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                page = Page(socket, password)
                try:
                    await page.open(url)
                    yield page
                finally:
                    await page.close()
            async with http.get(f"/json/close/{tab['id']}"):
                pass


def _is_whole(port_file: Path) -> bool:
    return port_file.exists() and "/devtools/" in port_file.read_text()


LEAST_CONTRAST = """(() => {
  const numbers = (color) => color.match(/[0-9.]+/g).map(Number);
  const light = (color) => {
    const [r, g, b] = numbers(color).map((one) => one / 255)
      .map((one) => (one <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (one) => {
    for (let at = one; at; at = at.parentElement) {
      const color = getComputedStyle(at).backgroundColor;
      if (numbers(color)[3] !== 0) return color;
    }
    return "rgb(255, 255, 255)";
  };
  const written = [...document.querySelectorAll("body *")].filter((one) =>
    one.getClientRects().length && [...one.childNodes].some((inside) => inside.nodeType === 3 && inside.data.trim()));
  return Math.min(...written.map((one) => {
    const [dim, bright] = [light(getComputedStyle(one).color), light(ground(one))].sort((a, b) => a - b);
    return (bright + 0.05) / (dim + 0.05);
  }));
})()"""
"""The smallest contrast of text to what is behind it, of all text of a page."""
