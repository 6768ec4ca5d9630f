"""People give clients the right to write to a topic, and take it again, while all kinds of faults occur.

A right that was taken is gone: a write that a client sends later than `GONE_AFTER_S` after the answer to the person is
not acknowledged by any node, until a person asks to give the right back. Nodes that are cut off from the meta service
may decide by old rules, but they lead nothing once their lease has ended.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Final

from stratalog.formats.batches.records import NEXT_OFFSET, Record, encode_batch
from stratalog.kafka.error_codes import ErrorCode
from stratalog.model.commands.rights_commands import CreateRules, DeleteRules
from stratalog.model.commands.table_commands import CreateTopic
from stratalog.model.errors import AlreadyExists, StratalogError
from stratalog.model.rights import (
    ANONYMOUS,
    Operation,
    Permission,
    Resource,
    ResourceType,
    Rule,
    RuleFilter,
)
from stratalog_sim.broken import Broken
from stratalog_sim.product.clients import Producer, Wire
from stratalog_sim.product.faults import cause_faults
from stratalog_sim.product.meta_host import MetaLink
from stratalog_sim.product.world import LEASE_MS, PORT, Host, ProductWorld

GUARDED: Final = "guarded"
GONE_AFTER_S: Final = LEASE_MS / 1_000 + 1.0
_THERE_AFTER_S: Final = 20.0
_POLL_S: Final = 0.05
_OTHER: Final = "User:other"


class ChangingRights:
    def __init__(self, world: ProductWorld) -> None:
        self._world = world
        self._rng = Random(world.rng.random())
        self._link = MetaLink(world.meta, world.client_machine)
        self._is_by_deny = self._rng.random() < 0.5
        """Rights are taken by a DENY, not by deleting an ALLOW."""
        self._taken_s: float | None = None
        """Since when the right is gone, by the answer to a person; None while it may be there."""
        self.acknowledged = self.denied = 0
        world.node_settings |= {"authorizer_class_name": "stratalog", "allow_everyone_if_no_acl_found": True}

    async def run(self) -> None:
        world = self._world
        await self._prepare()
        writers = [
            world.spawn(
                world.clients, self._write(Producer(f"w{acks}", GUARDED, 0, world.wire(), self._rng, acks=acks))
            )
            for acks in (-1, 1)
        ]
        person = world.spawn(world.clients, self._change())
        await cause_faults(world)
        person.cancel()
        await self._end()
        for writer in writers:
            writer.cancel()
        world.say(f"rights: {self.acknowledged} writes acknowledged, {self.denied} denied")

    async def _prepare(self) -> None:
        while True:
            try:
                await self._link.perform(CreateTopic(GUARDED, 1, self._world.shape.replicas, {}))
                break
            except AlreadyExists:
                break
            except StratalogError:
                await asyncio.sleep(_POLL_S)
        if not self._is_by_deny:  # a topic with a rule is closed to clients that no rule allows anything
            await self._ask(CreateRules((self._rule(Permission.ALLOW, _OTHER),)))
            self._taken_s = self._world.loop.now_s

    @staticmethod
    def _rule(permission: Permission, who: str = str(ANONYMOUS)) -> Rule:
        return Rule(Resource(ResourceType.TOPIC, GUARDED), who, "*", Operation.WRITE, permission)

    async def _ask(self, command: CreateRules | DeleteRules) -> None:
        """As a person does, who repeats it until there is an answer."""
        while True:
            try:
                await self._link.perform(command)
                return
            except StratalogError:
                await asyncio.sleep(_POLL_S)

    async def _give(self) -> None:
        self._world.say("a person gives the right to write")
        self._taken_s = None
        if self._is_by_deny:
            await self._ask(DeleteRules((RuleFilter(principal=str(ANONYMOUS)),)))
        else:
            await self._ask(CreateRules((self._rule(Permission.ALLOW),)))

    async def _take(self) -> None:
        self._world.say("a person takes the right to write")
        if self._is_by_deny:
            await self._ask(CreateRules((self._rule(Permission.DENY),)))
        else:
            await self._ask(DeleteRules((RuleFilter(principal=str(ANONYMOUS)),)))
        self._taken_s = self._world.loop.now_s
        self._world.say("the right to write is taken")

    async def _change(self) -> None:
        while True:
            await asyncio.sleep(0.1 + 0.5 * self._rng.random())
            await self._give()
            await asyncio.sleep(0.1 + 0.5 * self._rng.random())
            await self._take()
            await asyncio.sleep(GONE_AFTER_S + self._rng.random())

    async def _write(self, producer: Producer) -> None:
        batch = encode_batch([Record(NEXT_OFFSET, 1_700_000_000_000, None, b"x")])
        while True:
            await asyncio.sleep(0.02 + 0.08 * self._rng.random())
            sent_s = self._world.loop.now_s
            try:
                code, _ = await producer.produce(batch)
            except (OSError, TimeoutError):
                continue
            if code == 0:
                self.acknowledged += 1
                self._check(producer.name, sent_s)
            else:
                self.denied += code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
                producer.leave(code)

    def _check(self, who: str, sent_s: float) -> None:
        taken_s = self._taken_s
        if taken_s is not None and sent_s > taken_s + GONE_AFTER_S:
            self._world.truth.fail(
                "a right that was taken is gone",
                f"{who} wrote {sent_s - taken_s:.2f} s after a person was told that it may not",
            )

    async def _end(self) -> None:
        """All is well: each node denies what no client may do, and what is given is there soon."""
        world = self._world
        world.start_wanted()
        await self._take()
        await asyncio.sleep(GONE_AFTER_S)
        for host in world.hosts.values():
            await self._until(host, {ErrorCode.TOPIC_AUTHORIZATION_FAILED})
        await self._give()
        before, ends_s = self.acknowledged, world.loop.now_s + _THERE_AFTER_S
        while self.acknowledged == before:
            if world.loop.now_s > ends_s:
                raise Broken("a right that was given is there", f"no write in {_THERE_AFTER_S} s")
            await asyncio.sleep(_POLL_S)

    async def _until(self, host: Host, codes: set[ErrorCode]) -> None:
        """The node answers to a write with one of these codes, once it runs."""
        world = self._world
        wire = Wire(world.network, lambda: [(host.machine.host, PORT)])
        producer = Producer("last", GUARDED, 0, wire, self._rng)
        ends_s, code = world.loop.now_s + _THERE_AFTER_S, -1
        batch = encode_batch([Record(NEXT_OFFSET, 1_700_000_000_000, None, b"x")])
        while code not in codes:
            if world.loop.now_s > ends_s:
                raise Broken("each node decides by the newest rules", f"{host.machine.name} answers {code}")
            try:
                code, _ = await producer.produce(batch)
            except (OSError, TimeoutError):
                await asyncio.sleep(_POLL_S)
        wire.close()
