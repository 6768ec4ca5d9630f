"""Rules and credentials as a node sees them: loaded at once, followed in order, and never more rights in between."""

from __future__ import annotations

import random
from dataclasses import replace

from stratalog.model.commands.rights_commands import AlterCredentials, CreateRules, DeleteRules
from stratalog.model.metadata import Change, ChangeSet, CredentialChanged, RuleCreated, RuleDeleted, Snapshot
from stratalog.model.rights import (
    Operation,
    PatternType,
    Permission,
    Principal,
    Resource,
    ResourceType,
    Rule,
    RuleFilter,
)
from stratalog.model.scram import CredentialName, ScramCredential, ScramMechanism, UserCredential
from stratalog.settings.process import ProcessSettings
from stratalog.settings.topic import TopicSettings
from stratalog_meta.service import MetaService
from stratalog_meta.stores.memory import MemoryStore
from stratalog_node.shards.catalog.catalog import Catalog
from stratalog_node.shards.catalog.rights import CatalogRights
from support.meta_worlds import HandClock

ALICE = Principal("User", "alice")
SHA_256 = ScramMechanism.SCRAM_SHA_256


def a_rule(name: str, permission: Permission = Permission.ALLOW, who: str = "User:alice") -> Rule:
    return Rule(Resource(ResourceType.TOPIC, name), who, "*", Operation.READ, permission)


def a_user(name: str, key: bytes = b"k") -> UserCredential:
    return UserCredential(name, SHA_256, ScramCredential(b"salt", key * 32, key * 32, 4_096))


def new_catalog(rights: CatalogRights | None = None) -> Catalog:
    return Catalog(lambda overrides: TopicSettings.resolve(ProcessSettings(), overrides), rights)


def may_read(catalog: Catalog, name: str, who: Principal = ALICE) -> bool:
    return catalog.rights.authorizer.decide(who, "10.0.0.1", Operation.READ, ResourceType.TOPIC, name).is_allowed


def state(catalog: Catalog) -> object:
    rights = catalog.rights
    names = set(rights.credential_names())
    return set(rights.authorizer.rules()), {name: rights.credential(*_parts(name)) for name in names}


def _parts(name: CredentialName) -> tuple[str, ScramMechanism]:
    return name.user, name.mechanism


def test_a_snapshot_brings_all_rights_and_a_change_changes_decisions() -> None:
    catalog = new_catalog()
    catalog.load(Snapshot(3, (), (), (), rules=(a_rule("orders"),), credentials=(a_user("alice"),)))
    assert may_read(catalog, "orders") and not may_read(catalog, "payments")
    assert catalog.rights.credential("alice", SHA_256) == a_user("alice").credential
    assert catalog.rights.credential("alice", ScramMechanism.SCRAM_SHA_512) is None
    catalog.apply(ChangeSet(4, (RuleDeleted(a_rule("orders")), RuleCreated(a_rule("payments")))))
    assert not may_read(catalog, "orders") and may_read(catalog, "payments")
    catalog.apply(ChangeSet(5, (CredentialChanged(a_user("alice", b"n")),)))
    assert catalog.rights.credential("alice", SHA_256) == a_user("alice", b"n").credential


def test_super_users_and_the_default_without_rules_are_the_nodes_settings() -> None:
    admin = Principal("User", "admin")
    catalog = new_catalog(CatalogRights(super_users=frozenset({admin}), is_open_without_rules=True))
    catalog.load(Snapshot(1, (), (), (), rules=(a_rule("orders", Permission.DENY, "User:*"),)))
    assert may_read(catalog, "orders", admin) and not may_read(catalog, "orders") and may_read(catalog, "free")


async def test_a_catalog_that_missed_any_history_has_the_rights_of_one_that_followed_it() -> None:
    meta = MetaService(MemoryStore(), HandClock())
    await meta.start()
    chance = random.Random(8)
    first = await meta.snapshot()
    followed, late = new_catalog(), new_catalog()
    followed.load(first)
    late.load(first)
    told: list[Change] = []
    late.on_change(told.append)
    for step in range(80):
        name = chance.choice("abcd")
        permission = chance.choice((Permission.ALLOW, Permission.DENY))
        if chance.random() < 0.4:
            await meta.perform(CreateRules((a_rule(name, permission),)))
        elif chance.random() < 0.5:
            await meta.perform(DeleteRules((RuleFilter(name=name, permission=permission),)))
        elif chance.random() < 0.6:
            await meta.perform(AlterCredentials(put=(a_user(name, bytes([step])),)))
        else:
            await meta.perform(AlterCredentials((CredentialName(name, SHA_256),)))
        if step % 9 == 0:
            snapshot = await meta.snapshot()
            before = set(late.rights.authorizer.rules())
            told.clear()
            late.reload(snapshot)
            rules = [change for change in told if isinstance(change, RuleCreated | RuleDeleted)]
            assert len(rules) == len(before ^ set(snapshot.rules)), "only what differs is told"
            assert state(late) == ({*snapshot.rules}, {one.name: one.credential for one in snapshot.credentials})
    async for change_set in meta.watch(first.version):
        followed.apply(change_set)
        if change_set.version == (await meta.snapshot()).version:
            break
    late.reload(await meta.snapshot())
    assert state(followed) == state(late)
    await meta.close()


async def test_while_many_rules_change_in_steps_nothing_is_allowed_that_was_not_and_will_not_be() -> None:
    meta = MetaService(MemoryStore(), HandClock())
    await meta.start()
    before = await meta.snapshot()
    # The allowing rule comes first in the command, the denying one a thousand rules later.
    other = tuple(a_rule(f"other-{number}", who="User:bob") for number in range(1_000))
    await meta.perform(CreateRules((a_rule("orders"), *other, a_rule("orders", Permission.DENY))))
    await meta.perform(DeleteRules((RuleFilter(),)))
    followed = new_catalog()
    followed.load(before)
    steps = 0
    async for change_set in meta.watch(before.version):
        for _ in followed.apply_in_steps(change_set):
            steps += 1
            assert not may_read(followed, "orders")
        if change_set.version == await meta.read_version():
            break
    assert steps >= 6 and not len(followed.rights.authorizer)
    await meta.close()


def test_while_a_catalog_reloads_nothing_is_allowed_that_was_not_and_will_not_be() -> None:
    deny, allow = a_rule("orders", Permission.DENY), a_rule("orders")
    other = tuple(a_rule(f"other-{number}", who="User:bob") for number in range(1_000))
    for first, second in (((), (allow, *other, deny)), ((deny, *other, allow), ()), ((deny, *other), (deny, allow))):
        catalog = new_catalog()
        catalog.load(Snapshot(1, (), (), (), rules=first))
        for _ in catalog.reload_in_steps(Snapshot(2, (), (), (), rules=second)):
            assert not may_read(catalog, "orders")
        assert set(catalog.rights.authorizer.rules()) == set(second)


def test_fifty_thousand_rules_are_reloaded_in_short_steps() -> None:
    """Counted in rules, as no test counts in time: a step of 2,000 comparisons takes some milliseconds."""
    rules = tuple(
        Rule(
            Resource(ResourceType.TOPIC, f"topic-{number}", PatternType.PREFIXED), "User:a", "*", Operation.READ, ALLOW
        )
        for number in range(50_000)
    )
    catalog = new_catalog()
    catalog.load(Snapshot(1, (), (), (), rules=rules))
    changed = (*rules[:-1], replace(rules[-1], principal="User:b"))
    assert sum(1 for _ in catalog.reload_in_steps(Snapshot(2, (), (), (), rules=changed))) >= 50
    assert set(catalog.rights.authorizer.rules()) == set(changed)


ALLOW = Permission.ALLOW
