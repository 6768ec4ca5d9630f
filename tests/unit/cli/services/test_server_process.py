"""The end of a server's process, which waits for nothing that may never come."""

from __future__ import annotations

import subprocess
import sys

import pytest

LEAVES_A_TASK = """
import asyncio
from stratalog_cli.services import server_process

async def never_ends():
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            print("cancelled", flush=True)

async def main():
    task = asyncio.create_task(never_ends(), name="never ends")
    await asyncio.sleep(0)
    print("ends", flush=True)
    {end}

server_process._LEFT_TASKS_S = 0.1
server_process.run_server(main())
"""


@pytest.mark.fault("operator-watch-ended-tasks-left")
@pytest.mark.parametrize(("end", "code"), [("return 3", 3), ("raise ValueError('the end')", 1)])
def test_a_process_ends_although_a_task_does_not_end_when_it_is_cancelled(end: str, code: int) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", LEAVES_A_TASK.format(end=end)], capture_output=True, text=True, check=False, timeout=60
    )
    assert (ran.returncode, ran.stdout.split()) == (code, ["ends", "cancelled"])
    assert ("ValueError: the end" in ran.stderr) == (code == 1)
