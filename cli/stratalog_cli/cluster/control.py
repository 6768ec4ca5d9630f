"""Connects commands with the process that runs a cluster: a socket in its directory, one request per connection.

A request is a line of JSON, `{"do": "stop-part", "part": "node-1"}`; the answer is lines of JSON: `{"say": "…"}` for
progress, then `{"answer": …}` or `{"error": "NotFound", "message": "…"}`. Only the directory's owner may connect.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Final, Self

from stratalog.admin_api.errors import error_body, error_from_body
from stratalog.event_loop.task_set import TaskSet
from stratalog.model.errors import OutcomeUnknown, StratalogError, Unavailable

SOCKET_FILE: Final = "control.sock"

Say = Callable[[str], None]
Answerer = Callable[[dict[str, Any], Say], Awaitable[object]]
"""Does what a request asks. Raises StratalogError."""


@contextlib.contextmanager
def _short_path(directory: Path) -> Iterator[str]:
    """A name of the socket that fits, for the kernel takes 107 bytes and a directory's path may be longer."""
    plain = str(directory / SOCKET_FILE)
    if len(os.fsencode(plain)) < 100:
        yield plain
        return
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{SOCKET_FILE}"
    finally:
        os.close(descriptor)


class ControlServer:
    """Requires: whoever makes it holds the directory's lock, so a socket that is there is one that was left."""

    def __init__(self, directory: Path, answerer: Answerer) -> None:
        self._directory = directory
        self._answerer = answerer
        self._server: asyncio.Server | None = None
        self._answering = TaskSet()

    async def __aenter__(self) -> Self:
        (self._directory / SOCKET_FILE).unlink(missing_ok=True)
        listening = socket.socket(socket.AF_UNIX)
        before = os.umask(0o177)
        try:
            with _short_path(self._directory) as path:
                listening.bind(path)
        finally:
            os.umask(before)
        self._server = await asyncio.start_unix_server(self._accept, sock=listening)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Who asked for something gets the answer first."""
        assert self._server is not None
        self._server.close()
        if self._answering:
            await asyncio.wait(list(self._answering), timeout=5)
        (self._directory / SOCKET_FILE).unlink(missing_ok=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._answering.start(self._serve(reader, writer))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        def send(**line: object) -> None:
            writer.write(json.dumps(line).encode() + b"\n")

        try:
            request = json.loads(await reader.readline())
            send(answer=await self._answerer(request, lambda text: send(say=text)))
        except StratalogError as error:
            send(**json.loads(error_body(error)))
        except ValueError:
            send(error="InvalidRequest", message="the request is not a line of JSON")
        finally:
            with contextlib.suppress(OSError):
                await writer.drain()
                writer.close()


class NotRunning(Unavailable):
    """No process runs the cluster of this directory."""


def ask(directory: Path, request: dict[str, Any], say: Say, *, timeout_s: float | None = None) -> Any:
    """Blocking. Returns the answer; hands on what is said meanwhile.

    Raises NotRunning, OutcomeUnknown when the answer is cut off, and what the other side raised.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(timeout_s)
        try:
            with _short_path(directory) as path:
                connection.connect(path)
        except OSError:
            raise NotRunning(
                f"the cluster in {directory} does not run: `stratalog cluster start --data {directory}` starts it"
            ) from None
        try:
            connection.sendall(json.dumps(request).encode() + b"\n")
            return _answer(connection, say)
        except OSError as error:
            raise OutcomeUnknown(f"{directory}: the answer was cut off ({error}): look with `cluster status`") from None


def _answer(connection: socket.socket, say: Say) -> Any:
    with connection.makefile("rb") as lines:
        for line in lines:
            request = json.loads(line)
            if "say" in request:
                say(request["say"])
            elif "error" in request:
                raise error_from_body(400, line)
            else:
                return request["answer"]
    raise OutcomeUnknown("the process of the cluster ended before it answered: look with `stratalog cluster status`")
