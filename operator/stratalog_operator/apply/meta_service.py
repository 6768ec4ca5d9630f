"""Sends requests to the meta service, over HTTP.

A refusal because the service knows more (the node has left, only this mount leads to some data) is not a failure: the
next pass sees the reason, and the plan waits or continues.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Final
from uuid import UUID

from stratalog.meta_api.client import CommandTaker
from stratalog.model.commands.mount_commands import CreateMount, EndMount
from stratalog.model.commands.retirement_commands import CancelRetirement, RetireNode
from stratalog.model.commands.rights_commands import AlterCredentials, AlterQuotas, CreateRules, DeleteRules
from stratalog.model.commands.table_commands import AlterTopic, CreateTopic, DeleteTopic, RollElsewhere, SealTopic
from stratalog.model.errors import AlreadyExists, Conflict, NotFound, StratalogError
from stratalog.model.ids import SegmentKey
from stratalog.model.quotas import QuotaAlteration, QuotaChange, QuotaEntity
from stratalog.model.retirement import RetireMode
from stratalog.model.rights import Rule, RuleFilter
from stratalog.model.scram import CredentialName, UserCredential
from stratalog.settings.process import ProcessSettings
from stratalog.settings.topic import TopicSettings
from stratalog_operator.plan import actions as act

RULES_AT_ONCE: Final = 500
"""That one request deletes: each is named whole, so that another one of the same name stays."""


class HttpMetaRequests:
    def __init__(self, client: CommandTaker) -> None:
        self._client = client

    async def retire(
        self, node_id: int, mode: RetireMode, force_storage_id: str | None, force_absence: int | None
    ) -> None:
        """Raises: InvalidRequest for a force that names another disk, another absence or a node that is alive;
        Unavailable."""
        await self._client.perform(RetireNode(node_id, mode, force_storage_id, force_absence))

    async def cancel(self, node_id: int) -> None:
        with suppress(Conflict, NotFound):
            await self._client.perform(CancelRetirement(node_id))

    async def make_topic(self, made: act.MakeTopic, process: ProcessSettings) -> None:
        """Raises: InvalidRequest for a setting that topics do not have, or not so."""
        TopicSettings.validate_overrides(made.settings, process)
        shards = process.num_partitions if made.shards is None else made.shards
        with suppress(AlreadyExists):
            await self._client.perform(CreateTopic(made.topic, shards, made.replication_factor, dict(made.settings)))

    async def change_topic(self, change: act.ChangeTopic, process: ProcessSettings) -> None:
        """Raises: InvalidRequest."""
        TopicSettings.validate_overrides(change.settings, process)
        command = AlterTopic(change.topic_id, dict(change.settings), dict(change.seen), change.shards)
        with suppress(Conflict, NotFound):
            await self._client.perform(command)

    async def remove_topic(self, topic_id: UUID) -> None:
        with suppress(NotFound):
            await self._client.perform(DeleteTopic(topic_id))

    async def seal_topic(self, topic_id: UUID, asked_ms: int) -> None:
        with suppress(NotFound):
            await self._client.perform(SealTopic(topic_id, asked_ms))

    async def roll_elsewhere(self, segments: tuple[SegmentKey, ...]) -> None:
        await self._client.perform(RollElsewhere(segments))

    async def make_mount(self, made: act.MakeMount) -> None:
        """Raises: InvalidRequest; of a snapshot NotFound, and Conflict where not all that it has is sealed. Where
        nothing is sealed yet of what is asked for by time there is nothing to mount yet."""
        command = CreateMount(made.owner, made.topics, made.from_ms, made.until_ms, made.lasts_ms, made.snapshot)
        with suppress(AlreadyExists, *(() if made.snapshot else (NotFound,))):
            await self._client.perform(command)

    async def end_mount(self, mount: str) -> None:
        with suppress(Conflict, NotFound):
            await self._client.perform(EndMount(mount))

    async def make_rules(self, rules: tuple[Rule, ...]) -> None:
        """Raises: InvalidRequest or LimitExceeded for the first that is refused; the others are kept."""
        _raise_first(await self._client.perform(CreateRules(rules)))

    async def remove_rules(self, rules: tuple[Rule, ...]) -> None:
        """Those that are not there are gone already."""
        for start in range(0, len(rules), RULES_AT_ONCE):
            filters = tuple(map(_filter_of, rules[start : start + RULES_AT_ONCE]))
            _raise_first(await self._client.perform(DeleteRules(filters)))

    async def alter_quotas(self, user: str, changes: tuple[QuotaChange, ...]) -> None:
        """Raises: InvalidRequest, LimitExceeded; then nothing is changed."""
        _raise_first(await self._client.perform(AlterQuotas((QuotaAlteration(QuotaEntity(user=user), changes),))))

    async def put_credential(self, credential: UserCredential) -> None:
        """Raises: InvalidRequest, LimitExceeded; no key is in them."""
        _raise_first(await self._client.perform(AlterCredentials(put=(credential,))))

    async def remove_credentials(self, names: tuple[CredentialName, ...]) -> None:
        """One by one: of a user all are deleted or none, and one of them may be gone already."""
        for name in names:
            with suppress(NotFound):
                _raise_first(await self._client.perform(AlterCredentials(deleted=(name,))))


def _filter_of(rule: Rule) -> RuleFilter:
    resource = rule.resource
    return RuleFilter(
        resource.type, resource.name, resource.pattern, rule.principal, rule.host, rule.operation, rule.permission
    )


def _raise_first(outcomes: Iterable[object]) -> None:
    for outcome in outcomes:
        if isinstance(outcome, StratalogError):
            raise outcome
