"""Subscriptions by regular expressions that the server resolves (KIP-848): the same topics and expressions for Apache
Kafka and for a node.

Each expression has a group of two members: one joins with the expression, the other one with that of a witness. Once
the witness is assigned and both members are at the same epoch, the first expression was resolved as well, although it
may match nothing. All groups wait together: Kafka resolves the expressions of a group each ten seconds.
"""

from __future__ import annotations

import datetime
import itertools
import struct
import uuid
from collections.abc import Callable
from typing import Any

from kio.serial import entity_reader

from stratalog.kafka import messages
from support.raw_client import RawClient
from support.waiting import eventually_sync

TOPICS = ("expr-a", "expr-ab", "expr.a", "exprxa", "Expr-A", "xexpr-a", "expr-7")
INTERNAL = "__consumer_offsets"
_WITNESS = "witness-of-expressions"
_PATIENCE_S = 60.0
_HEARTBEAT, _VERSION = 68, 1
_TRY_AGAIN = (14, 15, 16)
"""The coordinator is loading, unknown, elsewhere."""

EXPRESSIONS = (
    *("expr-a", "xpr-a", "expr", "expr.a", r"expr\.a", "Expr-A", "EXPR-A", "", " expr-a", "expr-a\n"),
    *("^expr-a$", "^expr", "-a$", r"\Aexpr-a\z", r"expr-a\Z", r"\bexpr-a\b"),
    *("expr-a|expr-ab", "expr-a|ab", "expr-(a|ab)", "expr-(?:a|ab)", "|expr-a"),
    *("expr-.*", ".*-a", ".*", "(?i)expr-a", "(?s).*-a", "(?U)expr-a.*", "expr-a?b?", "expr-a{1}", "expr-a*?"),
    *(r"expr-\d", "expr-[[:digit:]]", r"expr-\pN", r"expr-\p{Nd}", r"expr-\x37", r"expr-\x{37}", r"expr-[^a]"),
    *(r"\Qexpr.a\E", "(?P<name>expr)-a", "(?<name>expr)-a", r"expr-\C"),
    *("__.*", INTERNAL, "consumer_offsets", ".*offsets"),
    *("(", ")", "[", "[b-a]", "*", "+a", "a**", "a{2,1}", "a{1001}", "a++", "\\", r"\8", r"(a)\1", r"\x{110000}"),
    *("(?=a)", "(?!a)", "(?<=a)", "(?>a)", "(?#a)", "(?i", "(?x)a", "[[:none:]]", r"\p{None}", "(?P<a>a)(?P<a>a)"),
)


class Member:
    """Of a group; adopts whatever it is assigned at once."""

    def __init__(self, client: RawClient, group: str) -> None:
        self._client = client
        self._group = group
        self._id = str(uuid.uuid4())
        self._owned: dict[uuid.UUID, tuple[int, ...]] = {}
        self.epoch = 0

    def join(self, expression: str) -> int:
        """The error code."""
        codes: list[int] = []

        def is_answered() -> bool:
            codes.append(self.beat(expression))
            return codes[-1] not in _TRY_AGAIN

        eventually_sync(is_answered, _PATIENCE_S)
        return codes[-1]

    def beat(self, expression: str | None = None) -> int:
        """The error code."""
        owned = [{"topic_id": topic, "partitions": partitions} for topic, partitions in self._owned.items()]
        entity = messages.build(
            messages.request_type(_HEARTBEAT, _VERSION),
            group_id=self._group,
            member_id=self._id,
            member_epoch=self.epoch,
            rebalance_timeout=datetime.timedelta(seconds=60),
            subscribed_topic_regex=expression,
            topic_partitions=owned,
        )
        head = struct.pack(">hhih", _HEARTBEAT, _VERSION, 1, 3) + b"raw" + bytes(1)
        frame = head + messages.encode_entity(entity)
        self._client.send(struct.pack(">i", len(frame)) + frame)
        answer: Any = entity_reader(messages.response_type(_HEARTBEAT, _VERSION))(self._client.receive_frame(), 9)[0]
        if not answer.error_code:
            self.epoch = answer.member_epoch
            if answer.assignment is not None:
                self._owned = {one.topic_id: one.partitions for one in answer.assignment.topic_partitions}
        return int(answer.error_code)

    @property
    def topics(self) -> set[uuid.UUID]:
        return {topic for topic, partitions in self._owned.items() if partitions}


def make_topics(make: Callable[[str], str]) -> None:
    for topic in (*TOPICS, _WITNESS):
        make(topic)


def answers(bootstrap: str) -> dict[str, list[str] | int]:
    """The topics that each expression matches, or the error code that a member gets."""
    with RawClient(bootstrap) as client:
        eventually_sync(lambda: _has_coordinator(client), _PATIENCE_S)
        found: dict[str, list[str] | int] = dict.fromkeys(EXPRESSIONS, 0)
        members: dict[str, tuple[Member, Member]] = {}
        for number, expression in enumerate(EXPRESSIONS):
            first, second = (Member(client, f"expressions-{number}") for _ in range(2))
            found[expression] = code = first.join(expression)
            if not code:
                members[expression] = first, second
        for _, second in members.values():
            assert second.join(_WITNESS) == 0
        names = _topic_names(client)
        (witness,) = (topic for topic, name in names.items() if name == _WITNESS)

        def are_resolved() -> bool:
            for member in itertools.chain.from_iterable(members.values()):
                assert member.beat() == 0
            return all(
                first.epoch == second.epoch and witness in first.topics | second.topics
                for first, second in members.values()
            )

        eventually_sync(are_resolved, _PATIENCE_S)
        for expression, (first, second) in members.items():
            matched = {names[topic] for topic in first.topics | second.topics}
            found[expression] = sorted(matched & {*TOPICS, INTERNAL})
        return found


def _has_coordinator(client: RawClient) -> bool:
    """The first question makes the internal topic."""
    answer = client.call(10, 4, key_type=0, coordinator_keys=["expressions"])
    return bool(answer.coordinators[0].error_code == 0)


def _topic_names(client: RawClient) -> dict[uuid.UUID, str]:
    answer = client.call(3, 12, topics=None, allow_auto_topic_creation=False, include_topic_authorized_operations=False)
    return {topic.topic_id: topic.name for topic in answer.topics}
