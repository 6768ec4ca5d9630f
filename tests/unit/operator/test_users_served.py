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
from stratalog_operator.kube.certificate_files import is_issued_by, read_certificate, subject_of
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
    return _data(place, "alice", "password")


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


async def test_a_user_gets_a_certificate_of_the_authority_of_clients_and_loses_its_rules_when_it_is_deleted(
    api: ApiServer,
) -> None:
    async with operator_place(api, "certificates") as place, place.operator():
        by_certificate = {"type": "tls"}
        listener = {"name": "users", "port": 9093, "tls": True, "authentication": by_certificate}
        place.make(CLUSTER, {"spec.listeners": [{"name": "internal", "port": 9092}, listener]})
        place.make(POOL, {"spec.zones": [], "spec.replicas": 1})
        await place.until_ready(1)
        place.make(USER, {"spec.authentication": by_certificate, "spec.authorization": MAY_READ})
        await place.until(lambda: place.condition("Ready", "StorageUser", "alice") == "True")
        first, made = _data(place, "alice", "user.crt"), await place.members.service.snapshot()
        trusted = _data(place, "main-certificates", "clients-ca.crt")
        place.change("StorageUser", "alice", {"metadata": {"annotations": {"stratalog.dev/rotate": "june"}}})
        await place.until(lambda: _data(place, "alice", "user.crt") != first)
        await place.until(lambda: "CertificateRotated" in _reasons(place))
        place.delete("StorageUser", "alice")
        await place.until(lambda: not place.names("StorageUser"))
        left = await place.members.service.snapshot()

    found = read_certificate(first)
    assert subject_of(found) == "CN=alice" and is_issued_by(found, read_certificate(trusted))
    assert [rule.principal for rule in made.rules] == ["User:CN=alice"] and left.rules == ()


def _data(place: Place, secret: str, key: str) -> str:
    return base64.b64decode(place.get("Secret", secret).get("data", {}).get(key, "")).decode()


def _reasons(place: Place) -> set[Any]:
    return {event["reason"] for event in place.all("Event")}
