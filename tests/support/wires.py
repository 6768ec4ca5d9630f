"""The network between processes of one machine: before each address a proxy that knows its callers and can be cut.

    wires = Wires({"node-1": ["127.0.0.1:9092"], …}, cluster_json)
    wires.through["127.0.0.1:9092"]                    # where the others find it
    wires.cut(one_way(["node-1"], ["meta-1"]))         # meta-1 gets nothing from node-1; the other way works
    wires.restore()

A cut is silence: nothing is refused, nothing is closed. Bytes are held and delivered when the wire is restored, as with
TCP; so is the end of a connection. A call over a cut wire is connected and gets no answer. A caller is known by its
socket (Linux: /proc); a client, which is not a part, is `OUTSIDE`. The proxies are a process of their own, for the
threads of a test would hold them up: this file is its program too.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

OUTSIDE = "outside"
Wire = tuple[str, str]
"""Who speaks, who hears."""
_CHUNK = 256 << 10
_LOOPBACK = {"/proc/net/tcp": "0100007F", "/proc/net/tcp6": "0000000000000000FFFF00000100007F"}
"""127.0.0.1 as the kernel's tables write it: grpc's sockets speak both IPv4 and IPv6."""


def both_ways(one: Iterable[str], others: Iterable[str]) -> list[Wire]:
    pairs = one_way(one, others)
    return [*pairs, *((b, a) for a, b in pairs)]


def one_way(speakers: Iterable[str], hearers: Iterable[str]) -> list[Wire]:
    """What the speakers say to these."""
    return [(a, b) for a in speakers for b in hearers]


class Wires:
    """Blocking."""

    def __init__(self, addresses: Mapping[str, Iterable[str]], cluster_json: Path) -> None:
        """`addresses`: what each part listens on. `cluster_json`: the file with the pids of the parts."""
        self._cuts: Counter[Wire] = Counter()
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        self.through: dict[str, str] = self._ask(
            {"addresses": {part: list(own) for part, own in addresses.items()}, "cluster_json": str(cluster_json)}
        )
        """Address -> the proxy before it."""

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def cut(self, wires: Iterable[Wire]) -> None:
        """In force on return. A wire that is cut twice must be restored twice."""
        self._change(self._cuts + Counter(wires))

    def restore(self, wires: Iterable[Wire] | None = None) -> None:
        """These, or all."""
        self._change(Counter() if wires is None else self._cuts - Counter(wires))

    def _change(self, cuts: Counter[Wire]) -> None:
        self._cuts = cuts
        self._ask({"cuts": sorted(cuts)})

    def _ask(self, request: dict[str, Any]) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


# In the process of the proxies ----------------------------------------------------------------------------------------
class _Connection:
    """The caller is looked up only when it matters, because that reads all the sockets of the machine."""

    def __init__(self, callee: str, ports: tuple[int, int]) -> None:
        self.callee = callee
        self.ports = ports
        """The caller's, and the proxy's."""
        self.caller: str | None = None
        self.hears = asyncio.Event()
        """Set while what the caller says passes."""
        self.answers = asyncio.Event()


class _Proxies:
    def __init__(self) -> None:
        self._cluster_json = Path()
        self._cuts: set[Wire] = set()
        self._connections: dict[asyncio.Task[None], _Connection] = {}
        self._servers: list[asyncio.Server] = []

    async def serve(self) -> None:
        """Serves until the test closes its end."""
        asked = asyncio.StreamReader(limit=1 << 20)
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(asked), sys.stdin)
        while line := await asked.readline():
            answer = await self._answer(json.loads(line))
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()

    async def _answer(self, request: dict[str, Any]) -> object:
        if "cuts" in request:
            self._cuts = {(speaker, hearer) for speaker, hearer in request["cuts"]}
            self._set(list(self._connections.values()))
            return "done"
        self._cluster_json = Path(request["cluster_json"])
        return await self._listen(request["addresses"])

    def _pids(self) -> dict[str, int]:
        parts = json.loads(self._cluster_json.read_text(encoding="utf-8"))["parts"]
        return {part["name"]: part["pid"] for part in parts if part["pid"] is not None}

    async def _listen(self, addresses: Mapping[str, Iterable[str]]) -> dict[str, str]:
        through = {}
        for part, own in addresses.items():
            for address in own:
                server = await asyncio.start_server(self._connected(part, address), "127.0.0.1", 0)
                self._servers.append(server)
                through[address] = "{}:{}".format(*server.sockets[0].getsockname())
        return through

    def _set(self, connections: list[_Connection]) -> None:
        """Each passes on what no cut forbids."""
        named = {name for wire in self._cuts for name in wire}
        unknown = [one for one in connections if one.caller is None and one.callee in named]
        callers = callers_of([one.ports for one in unknown], self._pids()) if unknown else {}
        for one in unknown:
            one.caller = callers.get(one.ports, OUTSIDE)
        for one in connections:
            for wire, passes in (((one.caller, one.callee), one.hears), ((one.callee, one.caller), one.answers)):
                if wire in self._cuts:
                    passes.clear()
                else:
                    passes.set()

    def _connected(self, callee: str, address: str) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]:
        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            ports = writer.get_extra_info("peername")[1], writer.get_extra_info("sockname")[1]
            connection = _Connection(callee, ports)
            # A plain callback: asyncio's own task for a coroutine would complain when it is cancelled.
            carrying = asyncio.ensure_future(self._carry(connection, address, reader, writer))
            self._connections[carrying] = connection
            carrying.add_done_callback(self._connections.pop)
            self._set([connection])

        return connected

    async def _carry(
        self, connection: _Connection, address: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            host, _, port = address.rpartition(":")
            answers, there = await asyncio.open_connection(host, int(port), limit=_CHUNK)
        except OSError:
            _reset(writer)  # the nearest thing to a refusal after accepting the connection
            return
        try:
            await asyncio.gather(
                _pass_on(reader, there, connection.hears), _pass_on(answers, writer, connection.answers)
            )
        finally:
            for end in (there, writer):
                end.close()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, passes: asyncio.Event) -> None:
    """Passes bytes on until the sender has ended or the receiver has gone, and then ends the other side."""
    while True:
        await passes.wait()
        try:
            said = await reader.read(_CHUNK)
        except OSError:
            await passes.wait()
            _reset(writer)
            return
        await passes.wait()
        try:
            if not said:
                writer.write_eof()
                return
            writer.write(said)
            await writer.drain()
        except (OSError, RuntimeError):
            return


def _reset(writer: asyncio.StreamWriter) -> None:
    """As a process that is killed leaves it to the kernel."""
    with contextlib.suppress(OSError):
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


# Callers ------------------------------------------------------------------------------------------------------------
def callers_of(connections: Iterable[tuple[int, int]], pids: Mapping[str, int]) -> dict[tuple[int, int], str]:
    """The part that owns each connection between two ports of 127.0.0.1; connections of other processes are left
    out."""
    owners = {link: name for name, pid in pids.items() for link in _open_files(pid)}
    wanted = set(connections)
    found = {}
    for table, host in _LOOPBACK.items():
        with contextlib.suppress(OSError), Path(table).open(encoding="ascii") as sockets:
            for line in sockets:
                fields = line.split()
                if fields[1].startswith(host) and fields[2].startswith(host):
                    ports = int(fields[1][-4:], 16), int(fields[2][-4:], 16)
                    name = owners.get(f"socket:[{fields[9]}]")
                    if name is not None and ports in wanted:
                        found[ports] = name
    return found


def _open_files(pid: int) -> set[str]:
    found = set()
    folder = f"/proc/{pid}/fd"
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            with contextlib.suppress(OSError):
                found.add(os.readlink(f"{folder}/{name}"))
    return found


if __name__ == "__main__":
    asyncio.run(_Proxies().serve())
