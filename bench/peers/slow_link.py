"""A link that takes its time: forwards TCP to a server, and passes each answer on DELAY-MS milliseconds late.

    slow_link.py LISTEN-PORT SERVER-PORT DELAY-MS

The order of bytes stays, and nothing is limited: a request waits longer for its answer, many of them side by side.
"""

from __future__ import annotations

import asyncio
import sys

_CHUNK_BYTES = 256 << 10


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float) -> None:
    loop = asyncio.get_running_loop()
    line: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(maxsize=64)

    async def read() -> None:
        while data := await reader.read(_CHUNK_BYTES):
            await line.put((loop.time() + delay_s, data))
        await line.put((loop.time() + delay_s, b""))

    reading = asyncio.create_task(read())
    try:
        while True:
            at_s, data = await line.get()
            if (wait_s := at_s - loop.time()) > 0:
                await asyncio.sleep(wait_s)
            if not data:
                break
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        reading.cancel()
        writer.close()


async def _serve(port: int, server_port: int, delay_s: float) -> None:
    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", server_port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(_forward(reader, server_writer, 0.0), _forward(server_reader, writer, delay_s))

    async with await asyncio.start_server(accept, "127.0.0.1", port) as listening:
        print("ready", flush=True)
        await listening.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) / 1_000))
