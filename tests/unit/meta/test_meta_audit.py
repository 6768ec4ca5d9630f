"""Whatever a person asks the meta service to change is in its audit log, however it ended; what nodes do is not."""

from __future__ import annotations

import pytest

from stratalog.meta_api.http_client import HttpMetaClient
from stratalog.model.commands.retirement_commands import RetireNode
from stratalog.model.commands.rights_commands import CreateRules, DeleteRules
from stratalog.model.commands.table_commands import AcquireLock, AlterTopic, CreateTopic, DeleteTopic, RegisterNode
from stratalog.model.errors import AlreadyExists, StratalogError
from stratalog.model.metadata import NodeInfo
from stratalog.model.rights import Operation, Permission, Resource, ResourceType, Rule, RuleFilter
from stratalog.telemetry.http_access import HttpAccess
from stratalog_meta import MetaService
from stratalog_meta.api.server import MetaServer
from stratalog_meta.stores.memory import MemoryStore
from support.audit_lines import KeptAudit
from support.meta_worlds import IMPATIENT, HandClock

TOKEN = "the-token-of-this-cluster"
RULE = Rule(Resource(ResourceType.TOPIC, "orders"), "User:alice", "*", Operation.READ, Permission.ALLOW)


async def test_each_change_over_http_has_a_line_with_its_sender_and_its_end() -> None:
    service = MetaService(MemoryStore(), HandClock())
    await service.start()
    audit = KeptAudit()
    server = MetaServer(service, access=HttpAccess(lambda: (TOKEN,)), audit=audit)
    await server.start("127.0.0.1", 0)
    client = HttpMetaClient(server.address, IMPATIENT, token=lambda: TOKEN)
    registered = await client.perform(RegisterNode(NodeInfo(1, "disk", "localhost", 1)))
    assert registered.node_epoch == 1
    topic = await client.perform(CreateTopic("orders", 1, 1, {}))
    await client.perform(CreateTopic("trial", 1, 1, {}), validate_only=True)
    with pytest.raises(AlreadyExists):
        await client.perform(CreateTopic("orders", 1, 1, {}))
    await client.perform(AlterTopic(topic.topic_id, {"retention.ms": "5"}, expected={}))
    await client.perform(AcquireLock("l", "h", 1000))
    await client.perform(CreateRules((RULE,)))
    await client.perform(DeleteRules((RuleFilter(),)))
    with pytest.raises(StratalogError):
        await client.perform(RetireNode(9))
    await client.perform(DeleteTopic(topic.topic_id))
    await client.close()
    await server.close()
    await service.close()
    lines = audit.written()
    assert [(one["action"], one["resource"], one["outcome"], one["error"]) for one in lines] == [
        ("CreateTopic", "orders", "done", None),
        ("CreateTopic", "orders", "failed", "AlreadyExists"),
        ("AlterTopic", "orders", "done", None),
        ("CreateAcls", "orders", "done", None),
        ("DeleteAcls", "orders", "done", None),
        ("RetireNode", "9", "failed", "NotFound"),
        ("DeleteTopic", "orders", "done", None),
    ]
    assert {(one["principal"], one["address"], one["cluster"]) for one in lines} == {
        ("Token:cluster", "127.0.0.1", service.cluster_id)
    }
    assert audit.stats.lost == 0 and TOKEN not in repr(lines)
