"""Rules and SCRAM credentials in the meta service: which readers get them, and what a lost answer costs."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from structlog.testing import capture_logs

from stratalog.formats.bucket.object_names import ObjectNames
from stratalog.meta_api.http_client import HttpMetaClient
from stratalog.meta_api.json_shape import field_name
from stratalog.meta_api.wire import wire_of
from stratalog.model.commands.rights_commands import (
    AlterCredentials,
    AlterQuotas,
    CreateRules,
    DeletedRules,
    DeleteRules,
)
from stratalog.model.errors import Corrupt, OutcomeUnknown
from stratalog.model.metadata import RuleCreated
from stratalog.model.quotas import EntityQuotas, QuotaAlteration, QuotaChange, QuotaEntity, QuotaKey, QuotaLimits
from stratalog.model.rights import Operation, Permission, Resource, ResourceType, Rule, RuleFilter
from stratalog.model.scram import ScramCredential, ScramMechanism, UserCredential
from stratalog.model.views.rights_view import RightsView, salt_digest
from stratalog.objects import open_store
from stratalog.stored import encoding
from stratalog.stored.snapshots import list_snapshots, read_snapshot
from stratalog_meta import MetaService
from stratalog_meta.api.routes import ROUTES
from stratalog_meta.bucket.backups import BackupPlace
from stratalog_meta.stores.memory import MemoryStore
from stratalog_meta.stores.rocksdb import RocksStore
from support.fault_proxy import FaultProxy, LostAnswer
from support.fault_proxy import Rule as FaultRule
from support.meta_worlds import IMPATIENT, HandClock, MetaWorld, collect, running
from support.waiting import eventually

OF_ALICE, RATE = QuotaEntity(user="alice"), QuotaKey.PRODUCER_BYTE_RATE
RULE = Rule(Resource(ResourceType.TOPIC, "orders"), "User:alice", "*", Operation.READ, Permission.ALLOW)
SALT, STORED, SERVER = b"the-users-salt", b"the-stored-key-which-is-32-bytes", b"the-server-key-which-is-32-bytes"
USER = UserCredential("alice", ScramMechanism.SCRAM_SHA_256, ScramCredential(SALT, STORED, SERVER, 4_096))
SECRETS = [form for key in (SALT, STORED, SERVER) for form in (key, b64encode(key), key.hex().encode())]


def is_free_of_keys(shown: bytes) -> bool:
    return not any(secret in shown for secret in SECRETS)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[MetaWorld]:
    async with running("http/memory", tmp_path) as started:
        yield started


# Readers without keys -----------------------------------------------------------------------------------------------
async def test_who_reads_over_http_and_does_not_say_that_it_is_a_node_gets_no_keys(world: MetaWorld) -> None:
    assert world.url is not None
    before = (await world.client.snapshot()).version
    await world.client.perform(AlterCredentials(put=(USER,)))
    await world.client.perform(CreateRules((RULE,)))
    other = HttpMetaClient(world.url, IMPATIENT)
    assert (await other.snapshot()).credentials == () and (await other.snapshot()).rules == (RULE,)
    changes = [change for one in await collect(other.watch(before), 2) for change in one.changes]
    assert changes == [RuleCreated(RULE)], "the version goes on, without the credential"
    await other.close()
    async with aiohttp.ClientSession(world.url) as http:
        async with http.get("/v1/snapshot?credentials=true") as response:
            assert not is_free_of_keys(await response.read()), "that is how a node asks"
        async with http.get("/v1/snapshot?credentials=perhaps") as response:
            assert response.status == 400


async def test_rules_users_and_quotas_are_listed_again_only_after_a_change_of_them(world: MetaWorld) -> None:
    assert world.url is not None
    client = HttpMetaClient(world.url, IMPATIENT)
    empty = await client.rights()
    await world.client.perform(CreateRules((RULE,)))
    await world.client.perform(AlterCredentials(put=(USER,)))
    shown = await client.rights(empty.version)
    await world.ready_topic()
    same = await client.rights(shown.version)
    await world.client.perform(AlterCredentials(deleted=(USER.name,)))
    gone = await client.rights(same.version)
    await world.client.perform(AlterQuotas((QuotaAlteration(OF_ALICE, (QuotaChange(RATE, 1024.0),)),)))
    limited = await client.rights(gone.version)
    await world.client.perform(AlterQuotas((QuotaAlteration(OF_ALICE, (QuotaChange(RATE, None),)),)))
    free = await client.rights(limited.version)
    await client.close()

    assert (empty.rules, empty.credentials, empty.quotas) == ((), (), ())
    assert shown.rules == (RULE,) and not shown.is_unchanged
    assert [(one.user, one.mechanism, one.iterations) for one in shown.credentials] == [
        ("alice", ScramMechanism.SCRAM_SHA_256, 4_096)
    ]
    assert shown.credentials[0].salt_digest == salt_digest(SALT)
    assert same == RightsView(shown.version, is_unchanged=True), "a topic is no right"
    assert gone.rules == (RULE,) and gone.credentials == () == gone.quotas
    assert limited.quotas == (EntityQuotas(OF_ALICE, QuotaLimits(producer_byte_rate=1024.0)),)
    assert free.quotas == () and not free.is_unchanged


async def test_no_page_and_no_answer_of_the_service_has_a_key(world: MetaWorld) -> None:
    assert world.url is not None
    await world.ready_topic()
    await world.client.perform(AlterCredentials(put=(USER,)))
    paths = [route.path for route in ROUTES if route.method == "GET" and "{" not in route.path]
    read = 0
    async with aiohttp.ClientSession(world.url) as http:
        for path in (*paths, "/v1/snapshot", "/openapi.json", "/", "/topics", "/groups", "/nodes", "/metrics"):
            async with http.get(path) as response:
                shown = await response.read()
                read += response.status == 200
                assert is_free_of_keys(shown), path
    assert read > len(paths) // 2


async def test_no_refusal_and_no_line_of_the_log_has_a_key(world: MetaWorld) -> None:
    assert world.url is not None
    path = wire_of(AlterCredentials()).path
    body = json.loads(wire_of(AlterCredentials()).body.write(AlterCredentials(put=(USER,))))
    wrong = json.loads(json.dumps(body))
    wrong["put"][0]["credential"]["iterations"] = "4096"
    too_few = json.loads(json.dumps(body))
    too_few["put"][0]["credential"]["iterations"] = 1
    with capture_logs() as lines:
        async with aiohttp.ClientSession(world.url) as http:
            for asked, status in ((wrong, 400), (too_few, 200), (body, 200)):
                async with http.post(path, json=asked) as response:
                    assert response.status == status
                    assert is_free_of_keys(await response.read())
            async with http.post(
                path, data=json.dumps(body)[:-9], headers={"Content-Type": "application/json"}
            ) as sent:
                assert sent.status == 400 and is_free_of_keys(await sent.read())
    assert is_free_of_keys(repr(lines).encode())


async def test_a_snapshot_in_the_bucket_has_the_rules_and_no_credential() -> None:
    bucket, store = open_store("memory:"), MemoryStore()
    service = MetaService(store, HandClock(), backups=BackupPlace(bucket, 0.01, soonest_s=0.01))
    await service.start()
    await service.perform(CreateRules((RULE,)))
    await service.perform(AlterCredentials(put=(USER,)))

    async def is_told() -> bool:
        return service.backup_stats.version == await service.read_version()

    await eventually(is_told)
    names = ObjectNames("", service.cluster_id)
    _, records = await read_snapshot(bucket, names, (await list_snapshots(bucket, names))[-1])
    assert RULE in records
    assert not [record for record in records if isinstance(record, UserCredential)]
    await service.close()
    assert [record for record in await store.load() if isinstance(record, UserCredential)] == [USER]
    await bucket.close()


# What a lost answer costs -------------------------------------------------------------------------------------------
async def test_a_right_that_was_revoked_does_not_return_by_a_repetition(world: MetaWorld) -> None:
    """The answer to the creation was lost, another revoked the rule: the creation is not sent again by itself."""
    assert world.url is not None
    await world.node()
    async with FaultProxy(int(world.url.rpartition(":")[2])) as proxy:
        client = HttpMetaClient(proxy.endpoint, IMPATIENT)
        for command in (CreateRules((RULE,)), AlterCredentials(put=(USER,))):
            lost = proxy.add(FaultRule(LostAnswer()))
            with pytest.raises(OutcomeUnknown):
                await client.perform(command)
            assert lost.hits == 1, field_name(type(command))
            proxy.clear()
        snapshot = await world.client.snapshot()
        assert (snapshot.rules, snapshot.credentials) == ((RULE,), (USER,)), "both were done"
        lost = proxy.add(FaultRule(LostAnswer(), target_contains="/delete-rules", times=1))
        assert await client.perform(DeleteRules((RuleFilter(name="orders"),))) == (DeletedRules(()),)
        assert lost.hits == 1, "a revocation is sent again, and says what it found then"
        assert (await world.client.snapshot()).rules == ()
        await client.close()


async def test_metadata_from_before_there_were_rights_load_without_any() -> None:
    store = MemoryStore()
    service = MetaService(store, HandClock())
    await service.start()
    await service.close()
    again = MetaService(store, HandClock())
    await again.start()
    snapshot = await again.snapshot()
    assert (snapshot.rules, snapshot.credentials) == ((), ())
    await again.close()


def test_a_kind_of_record_that_this_version_does_not_know_is_refused_in_one_sentence() -> None:
    """So does an older version with rules and credentials."""
    header = (encoding.HEADER_KEY, b'[1,"c",1,1]')
    with pytest.raises(Corrupt, match="unknown kind b'!'"):
        list(encoding.decode([(b"!new", b"[]"), header], "store"))


async def test_other_users_of_the_machine_read_no_salted_keys(tmp_path: Path) -> None:
    store = RocksStore(tmp_path / "meta")
    await store.load()
    await store.close()
    assert (tmp_path / "meta").stat().st_mode & 0o007 == 0
