"""What a node does for those that leave: one that cannot be looked at keeps no other waiting."""

from __future__ import annotations

from stratalog.formats.object_names import ObjectNames
from stratalog.model.errors import Unavailable
from stratalog.model.metadata import Node
from stratalog.model.retirement import RetireStep
from stratalog.model.retirement_commands import ReportSighting, RetireNode
from stratalog.settings.process import ProcessSettings
from stratalog.settings.topic import TopicSettings
from stratalog_node.leaving.duty import LeavingDuty
from stratalog_node.leaving.sighting import Seen
from stratalog_node.shards.catalog import Catalog
from support.retirement_story import RetirementStory


class _Sighter:
    async def look(self, _node: Node) -> Seen:
        return Seen(segments=1)


class _Meta:
    """It takes no word about node 1."""

    def __init__(self) -> None:
        self.heard: list[int] = []

    async def perform(self, command: ReportSighting) -> None:
        if command.node_id == 1:
            raise Unavailable("not now")
        self.heard.append(command.node_id)


async def test_a_retirement_that_cannot_be_looked_at_keeps_no_other_waiting() -> None:
    story = RetirementStory(nodes=3)
    for node_id in (1, 2):
        story.do(RetireNode(node_id))
        story.looks(node_id)
        assert story.record(node_id).step is RetireStep.VERIFY
    catalog = Catalog(lambda overrides: TopicSettings.resolve(ProcessSettings(), overrides))
    catalog.load(story.table.snapshot())
    meta = _Meta()
    duty = LeavingDuty(3, catalog, meta, _Sighter(), None, ObjectNames("", "cluster-1"), 1_000, lambda: 0)  # type: ignore[arg-type]  # what a look asks of them
    await duty.look()
    assert meta.heard == [2]
