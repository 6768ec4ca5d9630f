"""The work that nodes do for one that leaves: check twice that all its data is elsewhere, and record what it held.

For each retirement that waits for this, one node is responsible (`machines/plans/verification_turns.py`). The metadata
decide, so a check that was not made falls to the next pass, or to another node if the responsible one dies.
Lives on the event loop, as one task.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Final

from stratalog.formats.bucket.object_names import InventoryName, ObjectNames
from stratalog.machines.plans.verification_turns import inventory_writer, node_on_turn, pause_before_check_ms
from stratalog.meta_api.client import MetaClient
from stratalog.model.commands.retirement_commands import ReportInventory, ReportSighting
from stratalog.model.errors import AlreadyExists, Corrupt, OutcomeUnknown, StratalogError
from stratalog.model.metadata import Node
from stratalog.model.retirement import Retirement, RetireStep
from stratalog.model.segment import Segment
from stratalog.objects.store import ObjectStore
from stratalog.telemetry.logs import logger
from stratalog_node.leaving.node_verifier import NodeVerifier
from stratalog_node.shards.catalog.catalog import Catalog

log = logger(__name__)

POLL_S: Final = 0.25
INVENTORY_FORMAT: Final = 1
_NODES_PER_TURN: Final = 16


class RetirementChecks:
    def __init__(
        self,
        node_id: int,
        catalog: Catalog,
        meta: MetaClient,
        sighter: NodeVerifier,
        store: ObjectStore | None,
        names: ObjectNames,
        interval_ms: int,
        steady_ms: Callable[[], int],
    ) -> None:
        """`interval_ms`: the time between the two checks."""
        self._node_id = node_id
        self._catalog = catalog
        self._meta = meta
        self._sighter = sighter
        self._store = store
        self._names = names
        self._interval_ms = interval_ms
        self._steady_ms = steady_ms
        self._known: dict[int, tuple[Retirement, int]] = {}
        """For each retirement the newest checked record, and when it changed."""
        self._attempt = 0

    async def run(self) -> None:
        """Without an end."""
        while True:
            await asyncio.sleep(POLL_S)
            try:
                await self.check_all()
            except Exception:  # else a node could never leave (F48)
                log.error("retirements cannot be checked", exc_info=True)

    async def check_all(self) -> None:
        """An error of one retirement does not stop the others; the next pass continues with it."""
        for number, node in enumerate(list(self._catalog.nodes()), 1):
            if number % _NODES_PER_TURN == 0:
                # finding the responsible node costs a check of each node, and thousands may leave
                await asyncio.sleep(0)
            try:
                await self._check(node)
            except StratalogError as error:
                log.info("a retirement was not checked yet", node_id=node.node_id, error=str(error))

    async def _check(self, node: Node) -> None:
        record = node.retirement
        if record is None or record.step not in (RetireStep.VERIFY, RetireStep.SNAPSHOT):
            self._known.pop(node.node_id, None)
        elif record.step is RetireStep.VERIFY and self._is_due(node, record):
            await self._sight(node, record)
        elif record.step is RetireStep.SNAPSHOT and record.inventory_key is None and self._is_writer(node):
            await self._write_inventory(node, record)

    def _is_due(self, node: Node, record: Retirement) -> bool:
        known = self._known.get(node.node_id)
        if known is None or (known[0].begun_ms, known[0].sightings) != (record.begun_ms, record.sightings):
            known = self._known[node.node_id] = record, self._steady_ms()
        if node_on_turn(node, self._catalog.nodes()) != self._node_id:
            return False
        return self._steady_ms() - known[1] >= pause_before_check_ms(record, self._interval_ms)

    def _is_writer(self, node: Node) -> bool:
        return inventory_writer(node, self._catalog.nodes()) == self._node_id

    async def _sight(self, node: Node, record: Retirement) -> None:
        seen = await self._sighter.verify(node)
        await self._meta.perform(
            ReportSighting(
                node.node_id,
                record.storage_id,
                record.begun_ms,
                seen.segments,
                tuple(seen.unconfirmed),
                seen.unconfirmed_count,
                seen.is_differing,
                seen.words,
                record.last_check_ms,
            )
        )

    # The inventory ------------------------------------------------------------------------------------------------
    async def _write_inventory(self, node: Node, record: Retirement) -> None:
        """Create-only, under a name of this try; what was written is read back before it counts."""
        if self._store is None:
            return
        self._attempt += 1
        key = self._names.build(InventoryName(node.node_id, record.begun_ms, self._node_id, self._attempt))
        body = await asyncio.to_thread(self._inventory, node, record, self._sighter.segments_of(node.node_id))
        try:
            await self._store.put(key, [body])
        except (AlreadyExists, OutcomeUnknown) as error:
            log.info("an inventory may be there already", key=key, error=str(error))
        if await self._store.get(key) != body:
            raise Corrupt("another inventory lies under this name", source=key, position=0)
        await self._meta.perform(ReportInventory(node.node_id, record.storage_id, record.begun_ms, key))

    def _inventory(self, node: Node, record: Retirement, segments: list[Segment]) -> bytes:
        listed = [_entry(segment, self._catalog) for segment in segments]
        inventory = {
            "format": INVENTORY_FORMAT,
            "cluster_id": self._names.cluster_id,
            "node_id": node.node_id,
            "storage_id": record.storage_id,
            "mode": record.mode,
            "metadata_version": self._catalog.version,
            "segments": listed,
        }
        return json.dumps(inventory, separators=(",", ":")).encode()


def _entry(segment: Segment, catalog: Catalog) -> dict[str, object]:
    key, seal, topic = segment.key, segment.seal, catalog.topic_by_id(segment.key.topic_id)
    return {
        "topic": None if topic is None else topic.name,
        "topic_id": str(key.topic_id),
        "shard": key.shard,
        "epoch": key.epoch,
        "base_offset": key.base_offset,
        "end_offset": segment.end_offset,
        "size_bytes": None if seal is None else seal.size_bytes,
        "digest": None if seal is None else seal.digest.hex(),
        "manifest": segment.remote.manifest_key,
        "holders": list(segment.local_nodes),
    }
