"""Passwords of users between Secrets and a real meta service: which password is taken, what is read and how often, and
where a password never is."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from stratalog.machines.sasl.scram import is_password
from stratalog.meta_api.http_client import HttpMetaClient
from stratalog.model.commands.rights_commands import AlterCredentials, AlterQuotas, CreateRules
from stratalog.model.errors import Conflict, InvalidRequest, Unavailable
from stratalog.model.quotas import QuotaAlteration, QuotaChange, QuotaEntity, QuotaKey, QuotaLimits
from stratalog.model.rights import Operation, Permission, Resource, ResourceType, Rule
from stratalog.model.scram import CredentialName, ScramMechanism
from stratalog.model.views.rights_view import RightsView
from stratalog_meta.api.server import MetaServer
from stratalog_meta.service import MetaService
from stratalog_meta.stores.memory import MemoryStore
from stratalog_operator.apply.meta_service import RULES_AT_ONCE, HttpMetaRequests
from stratalog_operator.apply.user_passwords import put_password
from stratalog_operator.observe.known_users import IN_TURN, MOST_READ, KnownUsers, read_secret
from stratalog_operator.observe.meta_service import HttpMetaObserver
from stratalog_operator.plan import actions as act
from stratalog_operator.plan.declared.users import plan_user
from stratalog_operator.plan.observed import Observed, Seen, SeenMeta, SeenRights, SeenUser
from stratalog_operator.plan.whole import plan
from stratalog_operator.resources.cluster import StorageClusterSpec, StorageClusterStatus
from stratalog_operator.resources.names import FINALIZER
from stratalog_operator.resources.user import SecretKeyRef
from stratalog_operator.specs.user import SecretOwner
from support.meta_worlds import HandClock
from support.operator_users import storage_user
from support.secret_store import Secrets

NOW = "2013-01-01T00:00:00Z"
NAME = CredentialName("alice", ScramMechanism.SCRAM_SHA_512)


@asynccontextmanager
async def _service() -> AsyncIterator[tuple[MetaService, HttpMetaClient]]:
    service = MetaService(MemoryStore(), HandClock())
    await service.start()
    served = MetaServer(service)
    client = HttpMetaClient(await served.start("127.0.0.1", 0))
    try:
        yield service, client
    finally:
        await client.close()
        await served.close()
        await service.close()


def _observed(users: Iterable[SeenUser], rights: SeenRights | None = None) -> Observed:
    spec = StorageClusterSpec.model_validate({"meta": {"etcd": {}}})
    whole = Seen("main", "u", spec, StorageClusterStatus())
    held = tuple(replace(one, finalizers=frozenset({FINALIZER})) for one in users)
    return Observed("data", NOW, whole, meta=SeenMeta("c", (), rights=rights or SeenRights(0)), users=held)


async def _pass(kubernetes: Secrets, client: HttpMetaClient, one: SeenUser) -> list[act.Action]:
    """What a pass does about the password of one user; returns what was done."""
    observer, requests = HttpMetaObserver(client), HttpMetaRequests(client)
    seen = _observed([one], (await observer.observe()).rights)
    seen = replace(seen, user_secrets={one.name: await read_secret(kubernetes, "data", one)})
    (user,) = seen.users
    made = plan_user(seen, user, user).offer.actions
    for action in made:
        assert isinstance(action, act.PutPassword)
        await put_password(kubernetes, requests, "data", NOW, action)
    return list(made)


async def _takes(service: MetaService, password: str, user: str = "alice") -> bool:
    (found,) = [one for one in (await service.snapshot()).credentials if one.user == user]
    return is_password(found.mechanism, found.credential, password)


# What the cluster takes -----------------------------------------------------------------------------------------------
async def test_the_cluster_takes_the_password_of_the_secret_and_a_pass_sees_that_it_does() -> None:
    kubernetes = Secrets()
    async with _service() as (service, client):
        first = await _pass(kubernetes, client, storage_user())
        password = kubernetes.text("alice")
        assert await _takes(service, password) and not await _takes(service, password + "x")
        assert await _pass(kubernetes, client, storage_user()) == []

    assert len(first) == 1 and len(password) == 32 and password.isalnum()
    jaas = kubernetes.text("alice", "sasl.jaas.config")
    login = "org.apache.kafka.common.security.scram.ScramLoginModule"
    assert jaas == f'{login} required username="alice" password="{password}";'
    (owner,) = kubernetes.held["alice"]["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("StorageUser", "alice", "uid-of-alice")


async def test_another_word_makes_another_password_and_the_old_one_is_refused() -> None:
    kubernetes = Secrets()
    async with _service() as (service, client):
        await _pass(kubernetes, client, storage_user())
        first = kubernetes.text("alice")
        asked = replace(storage_user(), annotations={"stratalog.dev/rotate": "june"})
        assert len(await _pass(kubernetes, client, asked)) == 1
        assert await _pass(kubernetes, client, asked) == [], "for one word once"
        second = kubernetes.text("alice")
        assert await _takes(service, second) and not await _takes(service, first)

    assert first != second and second in kubernetes.text("alice", "sasl.jaas.config")


@pytest.mark.fault("operator-killed-secret-credential")
async def test_a_rotation_whose_second_half_was_lost_is_completed_with_the_password_that_the_secret_has() -> None:
    """The operator was killed after it wrote the Secret, or the meta service did not answer."""
    kubernetes = Secrets()
    asked = replace(storage_user(), annotations={"stratalog.dev/rotate": "june"})

    class Silent:
        async def put_credential(self, credential: object) -> None:
            raise Unavailable("no answer")

    async with _service() as (service, client):
        await _pass(kubernetes, client, storage_user())
        secret = await read_secret(kubernetes, "data", asked)
        owner = SecretOwner("alice", asked.uid, "main", "alice")
        action = act.PutPassword(owner, act.PasswordSource.GENERATED, secret.uid, secret.version, None, "june")
        with pytest.raises(Unavailable):
            await put_password(kubernetes, Silent(), "data", NOW, action)
        second = kubernetes.text("alice")
        (completed,) = await _pass(kubernetes, client, asked)

        assert isinstance(completed, act.PutPassword) and completed.source is act.PasswordSource.KEPT
        assert kubernetes.text("alice") == second and await _takes(service, second)


async def test_a_secret_that_changed_since_it_was_read_is_not_written() -> None:
    kubernetes = Secrets()
    async with _service() as (_, client):
        await _pass(kubernetes, client, storage_user())
        before = kubernetes.text("alice")
        owner = SecretOwner("alice", "uid-of-alice", "main", "alice")
        stale = act.PutPassword(owner, act.PasswordSource.GENERATED, kubernetes.held["alice"]["metadata"]["uid"], "0")
        with pytest.raises(Conflict):
            await put_password(kubernetes, HttpMetaRequests(client), "data", NOW, stale)
        with pytest.raises(Conflict):
            made = act.PutPassword(owner, act.PasswordSource.GENERATED)
            await put_password(kubernetes, HttpMetaRequests(client), "data", NOW, made)

    assert kubernetes.text("alice") == before


GIVEN = {
    "type": "scram-sha-512",
    "password": {"valueFrom": {"secretKeyRef": {"name": "chosen", "key": "pw"}}},
}


async def test_a_given_password_with_quotes_is_taken_and_quoted_for_java() -> None:
    kubernetes = Secrets()
    kubernetes.give("chosen", "pw", 'a"b\\c é'.encode(), "alice")
    one = storage_user(authentication=GIVEN)
    async with _service() as (service, client):
        await _pass(kubernetes, client, one)
        assert await _takes(service, 'a"b\\c é')
        assert await _pass(kubernetes, client, one) == []
        kubernetes.give("chosen", "pw", b"another", "bob, alice")
        await _pass(kubernetes, client, one)
        assert await _takes(service, "another")

    assert kubernetes.text("alice", "sasl.jaas.config").endswith('password="another";')


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "is not there: create it"),
        (b"", "a password has 1 to 1024"),
        (b"secret-with-a-line-end\n", "such as a line end"),
        (b"\xff\xfe", "is not text"),
    ],
    ids=["absent", "empty", "line end", "no text"],
)
async def test_a_given_password_that_cannot_be_one_is_told_of_without_it(value: bytes | None, words: str) -> None:
    kubernetes = Secrets()
    if value is not None:
        kubernetes.give("chosen", "pw", value, "alice")
    found = await read_secret(kubernetes, "data", storage_user(authentication=GIVEN))

    assert words in found.given_trouble and "secret-with-a-line-end" not in repr(found)


@pytest.mark.fault("user-copies-other-secret")
@pytest.mark.parametrize("named", ["", "bob", "alice2", "alic", "*"])
async def test_a_user_takes_no_password_from_a_secret_that_does_not_name_it(named: str) -> None:
    """The operator may read all Secrets of the namespace; a person with the right to write StorageUsers may not."""
    kubernetes = Secrets()
    kubernetes.give("chosen", "pw", b"the-token-of-the-cluster", named)
    one = storage_user(authentication=GIVEN)
    found = await read_secret(kubernetes, "data", one)
    made = plan_user(_observed([one]), one, one)
    owner = SecretOwner("alice", one.uid, "main", "alice")
    given = GIVEN["password"]["valueFrom"]["secretKeyRef"]  # type: ignore[index]  # a mapping
    action = act.PutPassword(owner, act.PasswordSource.GIVEN, given=SecretKeyRef.model_validate(given))
    async with _service() as (service, client):
        with pytest.raises(InvalidRequest, match="does not name StorageUser alice"):
            await put_password(kubernetes, HttpMetaRequests(client), "data", NOW, action)
        assert not (await service.snapshot()).credentials

    assert "kubectl annotate secret/chosen --overwrite stratalog.dev/password-of=alice" in found.given_trouble
    assert "alice" not in kubernetes.held and not found.is_given and not made.offer.disruptive
    assert "token-of" not in repr(found) and "24" not in found.given_trouble, "nor how long it is"


async def test_a_password_that_was_taken_before_stays_when_its_secret_does_not_name_the_user_any_more() -> None:
    kubernetes = Secrets()
    kubernetes.give("chosen", "pw", b"a-good-password", "alice")
    one = storage_user(authentication=GIVEN)
    async with _service() as (service, client):
        await _pass(kubernetes, client, one)
        kubernetes.give("chosen", "pw", b"another", "")
        assert await _pass(kubernetes, client, one) == []
        assert await _takes(service, "a-good-password")


async def test_no_password_is_in_a_log_a_plan_an_action_or_a_status() -> None:
    kubernetes = Secrets()
    kubernetes.give("chosen", "pw", b"a-password-that-was-chosen", "alice")
    one = storage_user(authentication=GIVEN)
    with capture_logs() as lines:
        async with _service() as (_, client):
            secret = await read_secret(kubernetes, "data", one)
            seen = replace(_observed([one]), user_secrets={"alice": secret})
            made = plan(seen)
            for action in [action for action in made.actions if isinstance(action, act.PutPassword)]:
                await put_password(kubernetes, HttpMetaRequests(client), "data", NOW, action)
            after = await read_secret(kubernetes, "data", one)

    assert kubernetes.text("alice") == "a-password-that-was-chosen"
    assert "a-password-that-was-chosen" not in repr((lines, seen, made, after))


# What the meta service is asked ---------------------------------------------------------------------------------------
def _rule(number: int) -> Rule:
    topic = Resource(ResourceType.TOPIC, f"t-{number}")
    return Rule(topic, "User:alice", "*", Operation.READ, Permission.ALLOW)


async def test_rules_and_users_are_read_again_only_after_a_change() -> None:
    async with _service() as (service, client):
        observer = HttpMetaObserver(client)
        await service.perform(CreateRules((_rule(1),)))
        first = (await observer.observe()).rights
        same = (await observer.observe()).rights
        await service.perform(CreateRules((_rule(2),)))
        second = (await observer.observe()).rights

    assert first is same, "nothing was listed again"
    assert first is not None and first.rules == {"User:alice": frozenset({_rule(1)})}
    assert second is not None and second.rules == {"User:alice": frozenset({_rule(1), _rule(2)})}


async def test_quotas_are_set_and_read_and_those_of_client_ids_are_not_taken_for_the_users() -> None:
    change, client_id = QuotaChange(QuotaKey.PRODUCER_BYTE_RATE, 1024.0), QuotaEntity(user="alice", client_id="c")
    async with _service() as (service, client):
        requests, observer = HttpMetaRequests(client), HttpMetaObserver(client)
        await service.perform(AlterQuotas((QuotaAlteration(client_id, (change,)),)))
        before = (await observer.observe()).rights
        await requests.alter_quotas("alice", (change,))
        after = (await observer.observe()).rights
        with pytest.raises(InvalidRequest, match="fractional"):
            await requests.alter_quotas("alice", (replace(change, limit=1.5),))
        await requests.alter_quotas("alice", (replace(change, limit=None),))
        gone = (await observer.observe()).rights
        left = (await service.snapshot()).quotas

    assert before is not None and before.quotas == {}
    assert after is not None and after.quotas == {"alice": QuotaLimits(producer_byte_rate=1024.0)}
    assert gone is not None and gone.quotas == {} and [one.entity for one in left] == [client_id]


async def test_a_service_that_listed_no_quotas_is_asked_for_all_again_after_its_upgrade(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has the same version then, and would answer that nothing has changed."""
    async with _service() as (service, client):
        answers = service.rights

        async def older(known: int | None = None) -> RightsView:
            return replace(await answers(known), quotas=None)

        observer = HttpMetaObserver(client)
        monkeypatch.setattr(service, "rights", older)
        before = (await observer.observe()).rights
        monkeypatch.undo()
        after = (await observer.observe()).rights

    assert before is not None and before.quotas is None
    assert after is not None and after.quotas == {} and after.version == before.version


async def test_more_rules_than_one_request_names_are_removed_and_no_other() -> None:
    async with _service() as (service, client):
        requests = HttpMetaRequests(client)
        many = tuple(_rule(number) for number in range(2 * RULES_AT_ONCE + 1))
        await requests.make_rules((*many, replace(_rule(0), principal="User:bob")))
        await requests.remove_rules(many)
        await requests.remove_rules(many[:1])
        left = (await service.snapshot()).rules

    assert [rule.principal for rule in left] == ["User:bob"]


async def test_credentials_that_are_gone_already_are_removed_with_success() -> None:
    kubernetes = Secrets()
    async with _service() as (service, client):
        await _pass(kubernetes, client, storage_user())
        await service.perform(AlterCredentials(deleted=(NAME,)))
        await HttpMetaRequests(client).remove_credentials((NAME, CredentialName("bob", NAME.mechanism)))

        assert (await service.snapshot()).credentials == ()


# What is read, and how often ------------------------------------------------------------------------------------------
def _object(number: int, version: int = 1, **spec: Any) -> dict[str, Any]:
    metadata = {
        "name": f"user-{number:04}",
        "uid": f"u-{number}",
        "resourceVersion": str(version),
        "finalizers": [FINALIZER],
    }
    return {"metadata": metadata, "spec": {"clusterRef": "main", "authentication": {"type": "scram-sha-512"}, **spec}}


class Passes:
    """Looks at users pass after pass; all of them have their Secrets, and the cluster has nothing to do."""

    def __init__(self) -> None:
        self.known, self.kubernetes = KnownUsers(), Secrets()

    async def look(self, objects: list[dict[str, Any]], now: str = NOW) -> tuple[Observed, set[str]]:
        """What is observed, and whose Secrets were read."""
        self.kubernetes.requests.clear()
        users, unread = self.known.parse(objects)
        seen = replace(_observed([]), now=now, users=users, unread=tuple(unread))
        seen = replace(seen, user_secrets=await self.known.read_secrets(self.kubernetes, seen))
        seen = replace(seen, settled_users=self.known.settled(seen))
        read = {path.rpartition("/")[2] for method, path in self.kubernetes.requests if "/secrets/" in path}
        return seen, read


async def test_each_secret_is_read_once_and_then_a_few_in_turn() -> None:
    one, objects = Passes(), [_object(number) for number in range(2_000)]
    read: set[str] = set()
    for _ in range(40):
        _, now = await one.look(objects)
        assert len(now) == MOST_READ and not now & read
        read |= now
    assert len(read) == 2_000 and one.known.left == 0
    again: set[str] = set()
    for _ in range(100):
        _, now = await one.look(objects)
        assert len(now) == IN_TURN and not now & again
        again |= now
    assert len(again) == 2_000


class _Refusing(Secrets):
    """Refuses to show the Secrets of the users before this one."""

    first_shown = "user-0100"

    async def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
        found = await super().ask(method, path, body, **more)
        if path.rpartition("/")[2] < self.first_shown:
            raise Unavailable("not shown")
        return found


async def test_secrets_that_cannot_be_read_keep_no_others_from_being_read() -> None:
    one, objects = Passes(), [_object(number) for number in range(200)]
    one.kubernetes = _Refusing()
    for number in range(200):
        one.kubernetes.give(f"user-{number:04}", "password", b"word")
    read: set[str] = set()
    for _ in range(4):
        read |= (await one.look(objects))[1]
    assert len(read) == 200


async def test_a_user_that_changed_and_one_whose_password_is_due_are_read_at_once() -> None:
    one, objects = Passes(), [_object(number) for number in range(200)]
    for _ in range(4):
        await one.look(objects)
    for _ in range(2):
        await one.look(objects)
    objects[199] = _object(199, version=2)
    objects[150] = _object(150)
    objects[150]["status"] = {"rotatesAt": "2013-01-02T00:00:00Z"}
    objects[150]["metadata"]["resourceVersion"] = "3"
    _, first = await one.look(objects)
    _, second = await one.look(objects, now="2013-01-03T00:00:00Z")

    assert {"user-0199", "user-0150"} <= first
    assert "user-0150" in second and "user-0199" not in second


async def test_users_that_do_not_change_are_parsed_and_planned_once() -> None:
    one, objects = Passes(), [_object(number, authentication={"type": "oauth"}) for number in range(300)]
    seen, _ = await one.look(objects)
    first = plan(seen)
    statuses = {name: status for (kind, name), status in first.statuses.items() if kind == "StorageUser"}
    one.known.note(seen, first)
    for number, found in enumerate(objects):
        status = statuses[f"user-{number:04}"].model_dump(by_alias=True, exclude_none=True, mode="json")
        found["status"], found["metadata"]["resourceVersion"] = status, "2"
    seen, _ = await one.look(objects)
    second = plan(seen)
    one.known.note(seen, second)
    later, _ = await one.look(objects)

    assert len(statuses) == 300 and not [key for key in second.statuses if key[0] == "StorageUser"]
    assert len(later.settled_users) == 300
    assert all(before is after for before, after in zip(seen.users, later.users, strict=True))
    assert later.meta is not None
    rules = {"User:user-0007": frozenset({_rule(1)})}
    changed = replace(later, meta=replace(later.meta, rights=SeenRights(1, rules)))
    assert one.known.settled(changed) == later.settled_users - {"user-0007"}


async def test_a_user_whose_quotas_others_changed_is_planned_again() -> None:
    one, objects = Passes(), [_object(number, authentication={"type": "oauth"}, quotas={}) for number in (1, 2)]
    for found in objects:
        found["status"] = {"quotasOf": found["metadata"]["name"]}
    seen, _ = await one.look(objects)
    one.known.note(seen, act.Plan((), {}, 1))
    later, _ = await one.look(objects)
    limits = {"user-0001": QuotaLimits(producer_byte_rate=1.0)}
    assert later.settled_users == {"user-0001", "user-0002"} and later.meta is not None
    changed = replace(later, meta=replace(later.meta, rights=SeenRights(1, quotas=limits)))
    unknown = replace(later, meta=replace(later.meta, rights=SeenRights(1, quotas=None)))

    assert one.known.settled(changed) == {"user-0002"} and one.known.settled(unknown) == set()


async def test_a_secret_that_cannot_be_read_holds_up_no_other_user() -> None:
    one = Passes()

    class Refusing(Secrets):
        async def ask(self, method: str, path: str, *rest: Any, **more: Any) -> dict[str, Any]:
            if path.endswith("/user-0001"):
                raise Unavailable("no answer")
            return await super().ask(method, path, *rest, **more)

    one.kubernetes = Refusing()
    seen, _ = await one.look([_object(number) for number in range(3)])

    assert set(seen.user_secrets) == {"user-0000", "user-0002"}


async def test_users_that_are_refused_for_good_do_not_keep_the_operator_busy() -> None:
    """What is left is what was never read: it makes the next pass begin at once."""
    one, objects = Passes(), [_object(number) for number in range(3 * MOST_READ)]
    for _ in range(3):
        seen, _ = await one.look(objects)
    made = plan(seen)
    one.known.note(seen, made)
    await one.look(objects)

    assert made.actions and one.known.left == 0
