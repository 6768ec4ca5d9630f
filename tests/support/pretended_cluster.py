"""A cluster whose parts are pretended (`pretended_part`), run by the real starter."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from stratalog.meta_api import wire
from stratalog.meta_api.wire import MountList, NodeList
from stratalog_cli.cluster.control import ControlServer, ask
from stratalog_cli.cluster.directory import ClusterDirectory
from stratalog_cli.cluster.plan import Asked, Plan, Programs, first_plan
from stratalog_cli.cluster.starter import Starter
from support.cluster_ports import free_block

PRETENDED = Path(__file__).with_name("pretended_part.py")


class Stage:
    """A cluster of two pretended nodes and a pretended meta service."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.directory = ClusterDirectory(folder / "cluster")
        self.plan = first_plan(Asked(nodes=2, port_base=free_block()), has_etcd=False)
        self.said: list[str] = []
        self.warned: list[str] = []
        self.starter = self.new_starter(self.plan)

    def new_starter(self, plan: Plan) -> Starter:
        programs = Programs((sys.executable, "-S", str(PRETENDED), str(self.folder)), None)
        return Starter(self.directory, plan, programs, dict(os.environ), self.warned.append)

    def lets(self, name: str, what: str) -> None:
        (self.folder / f"{name}.does").write_text(what)

    def answers(self, nodes: NodeList, mounts: MountList) -> None:
        """What the meta service says."""
        (self.folder / "v1").mkdir()
        (self.folder / "v1" / "nodes").write_bytes(wire.NODES.write(nodes))
        (self.folder / "v1" / "mounts").write_bytes(wire.MOUNTS.write(mounts))

    @property
    def story(self) -> list[str]:
        path = self.folder / "story"
        return path.read_text().splitlines() if path.exists() else []

    def pids(self) -> dict[str, int | None]:
        told = json.loads((self.directory.path / "cluster.json").read_text())
        return {part["name"]: part["pid"] for part in told["parts"]}

    async def asks(self, **request: object) -> Any:
        return await asyncio.to_thread(ask, self.directory.path, request, self.said.append, timeout_s=30)

    @property
    def program(self) -> str:
        """What runs it as a process of its own."""
        return (
            "import sys; from pathlib import Path; from stratalog_cli.cluster.directory import ClusterDirectory as D\n"
            "from stratalog_cli.cluster.plan import Asked, Programs, first_plan\n"
            "from stratalog_cli.cluster.run import run_cluster\n"
            f"plan = first_plan(Asked(2, {self.plan.choices.ports.kafka}), has_etcd=False)\n"
            f"programs = Programs((sys.executable, '-S', {str(PRETENDED)!r}, {str(self.folder)!r}), None)\n"
            f"run_cluster(D(Path({str(self.directory.path)!r})), plan, programs)\n"
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Starter]:
        await self.directory.hold()
        try:
            async with ControlServer(self.directory.path, self.starter.answer):
                try:
                    await self.starter.start_all(self.said.append)
                    yield self.starter
                finally:
                    await self.starter.stop_all()
        finally:
            self.directory.release()
