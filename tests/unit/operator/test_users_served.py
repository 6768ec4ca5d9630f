"""A user between a real API server and a real meta service, with only the rights of the operator's role."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from stratalog.machines.sasl.scram import is_password
from stratalog.model.commands.rights_commands import CreateRules
from stratalog.model.metadata import Snapshot
from stratalog.model.quotas import EntityQuotas, QuotaEntity, QuotaLimits
from stratalog.model.rights import Operation, Permission, Resource, ResourceType, Rule
from stratalog_operator.resources.kinds import CLUSTER, POOL, USER
from support.api_server import NO_API_SERVER, ApiServer, apiserver_binary
from support.operator_place import Place, operator_place

pytestmark = [
    pytest.mark.real_apiserver,
    pytest.mark.skipif(apiserver_binary() is None, reason=NO_API_SERVER),
    pytest.mark.timeout(600),
]

MAY_READ = {
    "type": "simple",
    "acls": [{"resource": {"type": "topic", "name": "orders"}, "operations": ["Read"]}],
}
ORDERS = Resource(ResourceType.TOPIC, "orders")
READ = Rule(ORDERS, "User:alice", "*", Operation.READ, Permission.ALLOW)
BY_HAND = Rule(ORDERS, "User:alice", "*", Operation.DELETE, Permission.ALLOW)

SLOW = EntityQuotas(QuotaEntity(user="alice"), QuotaLimits(producer_byte_rate=1024.0, controller_mutation_rate=0.5))


def _password(place: Place) -> str:
    data = place.get("Secret", "alice").get("data", {})
    return base64.b64decode(data.get("password", "")).decode()


def _takes(snapshot: Snapshot, password: str) -> bool:
    found = [one for one in snapshot.credentials if one.user == "alice"]
    return len(found) == 1 and is_password(found[0].mechanism, found[0].credential, password)


@pytest.mark.fault("rule-made-by-hand")
async def test_a_user_is_made_rotated_and_revoked(api: ApiServer) -> None:
    async with operator_place(api, "users") as place, place.operator():
        service = place.members.service
        place.make(CLUSTER)
        place.make(POOL, {"spec.zones": [], "spec.replicas": 1})
        await place.until_ready(1)
        limits = {"producerByteRate": 1024, "controllerMutationRate": 0.5}
        place.make(USER, {"spec.authorization": MAY_READ, "spec.quotas": limits})
        await place.until(lambda: place.condition("Ready", "StorageUser", "alice") == "True")
        first, made = _password(place), await service.snapshot()
        place.change("StorageUser", "alice", {"metadata": {"annotations": {"stratalog.dev/rotate": "june"}}})
        await place.until(lambda: _password(place) != first)
        await service.perform(CreateRules((BY_HAND,)))
        place.change("StorageUser", "alice", {"metadata": {"labels": {"looked": "at"}}})
        await place.until(lambda: _reasons(place) >= {"PasswordRotated", "RulesRemoved"})
        second, rotated = _password(place), await service.snapshot()
        place.delete("StorageUser", "alice")
        await place.until(lambda: not place.names("StorageUser"))
        left = await service.snapshot()

    assert _takes(made, first) and made.rules == (READ,) and made.quotas == (SLOW,)
    assert _takes(rotated, second) and not _takes(rotated, first) and rotated.rules == (READ,)
    assert (left.credentials, left.rules, left.quotas) == ((), (), ())


def _reasons(place: Place) -> set[Any]:
    return {event["reason"] for event in place.all("Event")}
