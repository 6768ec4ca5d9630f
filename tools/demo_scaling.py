"""Nodes come and go while flights flow: two are added, one is retired to the bucket, one leaves its disk to be read."""

from __future__ import annotations

import asyncio
import shutil
import time
from dataclasses import replace
from typing import Final

from demo_cluster import add_node, is_running, meta_urls, run_stratalog, start_volume
from demo_read import Group
from demo_stage import DemoFailed, Stage
from demo_traffic import LOCAL, TIERED, Kind, Traffic, create_topic
from flights import Comparison, Flights
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from stratalog.admin_api.models import SegmentInfo
from stratalog.admin_api.mounts import MountInfo
from stratalog.admin_api.wording import human_bytes
from stratalog.meta_api.http_client import HttpMetaClient
from stratalog.model.errors import Unavailable
from stratalog.model.retirement import RetireMode, RetireStep, WaitReason
from stratalog.model.views.retirement_status import RetirementStatus

GONE, LEFT_BEHIND = 1, 2
"""The node that is retired in offload mode, and the one whose directory stays."""
_RETIRED_S, _ANSWERED_S, _READ_S = 90, 30, 60
_POLL_S: Final = 0.2


class Scaling:
    """`run` plays it; afterwards `stage` has the nodes that serve."""

    def __init__(self, stage: Stage, topic: str, flights: Flights, ends: dict[int, int]) -> None:
        self.stage = stage
        self._topic, self._flights, self._ends = topic, flights, ends
        self._meta = meta_urls(stage)
        self._traffic: list[Traffic] = []
        self.compared = 0

    def run(self, progress: Progress) -> None:
        """Raises: DemoFailed."""
        try:
            for kind in (
                TIERED,
                LOCAL,
            ):  # before a node joins, so that each of the first nodes leads some shards of both
                create_topic(self.stage, kind)
            self._write(TIERED)
            self._add(progress)
            self._retire(GONE, RetireMode.OFFLOAD, progress)
            gone = next(node for node in self.stage.nodes if node.name == f"node-{GONE}")
            shutil.rmtree(gone.data)
            self._print(progress, f"the directory of {gone.name} is deleted: nothing of it is needed")
            self._write(LOCAL)
            self._retire(LEFT_BEHIND, RetireMode.VOLUME, progress)
            for traffic in self._traffic:
                traffic.finish(progress)
        finally:
            for traffic in self._traffic:
                traffic.close()
        stay = tuple(node for node in self.stage.nodes if node.name not in (f"node-{GONE}", f"node-{LEFT_BEHIND}"))
        self.stage = replace(self.stage, nodes=stay, kafka=",".join(node.kafka for node in stay))
        self._read_all(progress)

    def _write(self, kind: Kind) -> None:
        self._traffic.append(Traffic(self.stage, self._flights, kind))

    def _add(self, progress: Progress) -> None:
        self.stage = add_node(self.stage)
        self._print(progress, f"{self.stage.nodes[-1].name} is added")

    def _read_all(self, progress: Progress) -> None:
        """From the beginning, by a group that has read nothing yet, from the nodes that stay."""
        comparisons = {self._topic: Comparison(self._flights)}
        comparisons |= {traffic.topic: Comparison(traffic.flights) for traffic in self._traffic}
        total = len(self._flights) + sum(traffic.total for traffic in self._traffic)
        bar = progress.add_task("read again", total=total)
        group = Group(self.stage.client_settings, "afterwards", comparisons)
        group.until(total, _READ_S, lambda count: progress.update(bar, completed=count))
        group.close()
        group.finish({self._topic: self._ends} | {traffic.topic: traffic.ends for traffic in self._traffic})
        self.compared = group.count

    # One node leaves --------------------------------------------------------------------------------------------
    def _retire(self, number: int, mode: RetireMode, progress: Progress) -> None:
        bar = progress.add_task(f"node-{number} leaves", total=len(RetireStep) - 1)
        run_stratalog(
            ["nodes", "retire", str(number), "--mode", mode, "--meta", self._meta], security=self.stage.security
        )
        deadline = time.monotonic() + _RETIRED_S
        told, is_added, is_read = None, False, False
        while True:
            found = self._read_status(number)
            step, wait = found.retirement.step, found.retirement.wait
            progress.update(bar, completed=list(RetireStep).index(step))
            at = (step, None if wait is None else wait.reason)
            if at != told:
                self._print(progress, f"node-{number} leaves ({mode}): {step}: {found.words}")
                told = at
            if step is RetireStep.DONE:
                break
            if wait is not None and wait.reason is WaitReason.REPLICATION_FACTOR and not is_added:
                self._add(progress)
                is_added = True
            # Once it waits the mount is there, which the process must find.
            if step is RetireStep.MOUNT and wait is not None and mode is RetireMode.VOLUME and not is_read:
                self._read_where_it_is(number, progress)
                is_read = True
            for traffic in self._traffic:
                traffic.check()
            if time.monotonic() > deadline:
                raise DemoFailed(
                    f"after {_RETIRED_S} s node-{number} has not left: {step}: {found.words}; docs/operate.md says "
                    "what each reason to wait asks for"
                )
            time.sleep(_POLL_S)
        self._until_ended(number)

    def _read_where_it_is(self, number: int, progress: Progress) -> None:
        self._until_ended(number)
        start_volume(self.stage, f"node-{number}", self._meta)
        self._print(progress, f"the directory of node-{number} is read by `stratalog node start --read-only`")

    def _until_ended(self, number: int) -> None:
        deadline = time.monotonic() + _ANSWERED_S
        while is_running(self.stage, f"node-{number}"):
            if time.monotonic() > deadline:
                raise DemoFailed(f"{_ANSWERED_S} s after its release the process of node-{number} still runs")
            time.sleep(0.05)

    def _read_status(self, number: int) -> RetirementStatus:
        """A meta service that does not answer is asked again."""

        security = self.stage.security
        tls = None if security is None else security.tls

        async def asked() -> tuple[RetirementStatus, ...]:
            client = HttpMetaClient(self._meta, tls=tls)
            try:
                return await client.retirements()
            finally:
                await client.close()

        deadline = time.monotonic() + _ANSWERED_S
        while True:
            try:
                return next(one for one in asyncio.run(asked()) if one.node_id == number)
            except Unavailable as error:
                if time.monotonic() > deadline:
                    raise DemoFailed(f"no meta service has answered for {_ANSWERED_S} s: {error}") from None
                time.sleep(_POLL_S)

    @staticmethod
    def _print(progress: Progress, text: str) -> None:
        progress.console.print(text, markup=False, soft_wrap=True)

    # Told -------------------------------------------------------------------------------------------------------
    def print_result(self, console: Console) -> None:
        """Prints which node serves what."""
        asked = self.stage.first.client()
        segments = [one for topic in (self._topic, TIERED.topic, LOCAL.topic) for one in asked.segments(topic)]
        mounts = asked.mounts()
        table = Table(title="Who serves what")
        for column in ("", "role", "leads", "segments held", "mounts"):
            table.add_column(column)
        for number in range(1, len(self.stage.nodes) + 3):
            table.add_row(f"node-{number}", _role(number), *_row(number, segments, mounts))
        in_bucket = [one for one in segments if one.remote_state == "complete"]
        table.add_row("bucket", "cold tier", "-", _amount(in_bucket), "-")
        console.print(table)
        alone = [one for one in segments if one.local_nodes == [LEFT_BEHIND] and one.remote_state != "complete"]
        console.print(
            f"{_flights(alone)} flights are nowhere but in the directory of node-{LEFT_BEHIND}; like all the others "
            "they were read again through the nodes that stay.",
            soft_wrap=True,
        )


def _row(number: int, segments: list[SegmentInfo], mounts: list[MountInfo]) -> tuple[str, str, str]:
    leads = sum(one.leader == number and one.state != "sealed" for one in segments)
    own = [one for one in segments if number in one.local_nodes]
    held_mounts = [f"{mount.name}, {mount.mode}" for mount in mounts if mount.holder == number]
    return f"{leads}" if leads else "-", _amount(own) if own else "-", "\n".join(held_mounts) or "-"


def _role(number: int) -> str:
    return {GONE: "retired, deleted", LEFT_BEHIND: "retired, read only"}.get(number, "member")


def _amount(segments: list[SegmentInfo]) -> str:
    return f"{len(segments)}, {human_bytes(sum(one.size_bytes for one in segments))}"


def _flights(segments: list[SegmentInfo]) -> str:
    return f"{sum(one.end_offset - one.base_offset for one in segments):,}"
