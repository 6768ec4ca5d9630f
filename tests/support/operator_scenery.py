"""A real meta service and pretended machines and nodes in a process of their own: what they cost is not the operator's,
and not that of who measures it.

`python -m support.operator_scenery SETTINGS`; it prints the address of the meta service, and ends with its input.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple
from pathlib import Path

from stratalog_meta.api.server import MetaServer
from stratalog_meta.clocks import wall_ms
from stratalog_meta.service import MetaService
from stratalog_meta.stores.memory import MemoryStore
from support.api_server import ApiServer
from support.certificates import Certificates
from support.operator_place import LEASE_MS, Place
from support.pretended_members import Members


@contextmanager
def operator_scenery(api: ApiServer, namespace: str, log: Path) -> Iterator[int]:
    """Its place in Kubernetes must be there. Gives the port of the meta service."""
    settings = {
        "port": api.port,
        "certificates": [str(path) for path in astuple(api.certificates)],
        "namespace": namespace,
    }
    tests = str(Path(__file__).resolve().parents[1])
    with (
        log.open("ab") as errors,
        subprocess.Popen(
            [sys.executable, "-m", "support.operator_scenery", json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=os.environ | {"PYTHONPATH": tests},
        ) as process,
    ):
        assert process.stdin is not None and process.stdout is not None
        try:
            told = process.stdout.readline()
            assert told, f"it ended at once: {log.read_text(errors='replace')[-2_000:]}"
            yield int(told)
        finally:
            process.stdin.close()


async def _main(settings: dict[str, object]) -> None:
    # Standard output has only the port: logs would fill the pipe.
    told = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    port, paths = settings["port"], settings["certificates"]
    assert isinstance(port, int) and isinstance(paths, list)
    api = ApiServer(port, Certificates(*(Path(path) for path in paths)))
    service = MetaService(MemoryStore(), wall_ms, lease_ms=LEASE_MS, verify_interval_ms=200)
    await service.start()
    # It is asked under the names of pods.
    server = MetaServer(service, allowed_hosts=".cluster.local")
    url = await server.start("127.0.0.1", 0)
    print(url.rpartition(":")[2].strip("/"), file=told, flush=True)
    place = Place(api, str(settings["namespace"]), Members(service), url)
    machines = asyncio.create_task(place.run_machines())
    over = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    await asyncio.wait({machines, over}, return_when=asyncio.FIRST_COMPLETED)
    if machines.done():
        machines.result()
    # The thread that reads is not waited for.
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(_main(json.loads(sys.argv[1])))
