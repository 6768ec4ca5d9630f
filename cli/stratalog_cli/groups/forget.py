"""`stratalog groups delete` and `delete-offsets`: forget a group, or what it has committed of some topics.

The coordinator refuses a group that has members, and offsets of topics that members are subscribed to.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Annotated, Any, Final

import typer

from stratalog.connect.missing_right import Right, missing_right, refused_right
from stratalog.kafka.error_codes import ErrorCode
from stratalog.model.counting import counted
from stratalog.model.errors import Conflict, InvalidRequest, NotFound, Unavailable
from stratalog.model.rights import Operation, ResourceType
from stratalog.telemetry.printable import printable
from stratalog_cli.connect.group_reads import (
    GroupArgument,
    Shard,
    committed_of,
    described,
    require_there,
    wanted_shards,
)
from stratalog_cli.connect.kafka_clients import WAIT_S, BootstrapOption, KafkaPlace, result_of
from stratalog_cli.connect.output import OutputFormat, OutputOption, print_json
from stratalog_cli.terminal.confirmation import YesOption, require_confirmation
from stratalog_cli.terminal.say import say

_OFFSET_DELETE: Final = 47


def delete(group: GroupArgument, yes: YesOption = False, bootstrap: BootstrapOption = None) -> None:
    """Delete a group with all that it has committed. Refused while it has members: stop them first."""
    place = KafkaPlace(bootstrap, is_write=True)
    found, committed = described(place, [group])[group], committed_of(place, group)
    require_there(group, found, committed)
    _refuse_members(group, found)
    if not yes:
        require_confirmation(f"delete group {printable(group)} with {counted(len(committed), 'committed offset')}")
    (answer,) = place.admin.delete_consumer_groups([group], request_timeout=WAIT_S).values()
    result_of(answer, place.refusal(Right(Operation.DELETE, ResourceType.GROUP, group)))
    say(f"deleted group {printable(group)}")


def delete_offsets(
    group: GroupArgument,
    topics: Annotated[
        list[str],
        typer.Option("--topic", metavar="TOPIC[:SHARD,...]", help="Topic, or some of its shards; may be repeated."),
    ],
    yes: YesOption = False,
    bootstrap: BootstrapOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Delete committed offsets of a group. Refused for topics that its members are subscribed to."""
    named = [wanted_shards(text) for text in topics]
    place = KafkaPlace(bootstrap, is_write=True)
    found, committed = described(place, [group])[group], committed_of(place, group)
    require_there(group, found, committed)
    chosen = _chosen(committed, named)
    if not chosen:
        for topic, _ in named:  # offsets of a topic that the client may not see are not shown to it
            place.require_right(Operation.READ, topic)
        raise NotFound(f"group {group} has committed nothing of {', '.join(topics)}")
    if not yes:
        require_confirmation(f"delete {counted(len(chosen), 'committed offset')} of group {printable(group)}")
    if found.coordinator is None:
        raise Unavailable(f"no node coordinates group {group} now; try again")
    _delete(place, group, found.coordinator, chosen)
    if output is OutputFormat.JSON:
        print_json([{"topic": topic, "shard": shard, "committed": committed[topic, shard]} for topic, shard in chosen])
    else:
        say(f"deleted {counted(len(chosen), 'committed offset')} of group {printable(group)}")


def _chosen(committed: dict[Shard, int], named: list[tuple[str, tuple[int, ...] | None]]) -> list[Shard]:
    def is_named(place: Shard) -> bool:
        return any(topic == place[0] and (shards is None or place[1] in shards) for topic, shards in named)

    return sorted(filter(is_named, committed))


def _delete(place: KafkaPlace, group: str, coordinator: Any, chosen: list[Shard]) -> None:
    """Raises: what the coordinator says; of several refusals the first."""
    by_topic: defaultdict[str, list[int]] = defaultdict(list)
    for topic, shard in chosen:
        by_topic[topic].append(shard)
    asked = [
        {"name": topic, "partitions": [{"partition_index": shard} for shard in shards]}
        for topic, shards in by_topic.items()
    ]
    host, port = coordinator.host, coordinator.port
    answer = place.ask(host, port, _OFFSET_DELETE, 0, is_write=True, group_id=group, topics=asked)
    of_group = Right(Operation.DELETE, ResourceType.GROUP, group)
    _raise_for(place, int(answer.error_code), f"group {group}", of_group)
    for topic in answer.topics:
        for shard in topic.partitions:
            of_topic = Right(Operation.READ, ResourceType.TOPIC, topic.name)
            what = f"group {group}, {topic.name}-{shard.partition_index}"
            _raise_for(place, int(shard.error_code), what, of_topic)


def _raise_for(place: KafkaPlace, code: int, what: str, needed: Right) -> None:
    if code == ErrorCode.NONE:
        return
    if (refused := refused_right(code, (needed,))) is not None:
        raise missing_right(place.settings, refused, place.bootstrap)
    if code == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC:
        raise Conflict(f"{what}: members of the group are subscribed to this topic; stop them, then try again")
    if code == ErrorCode.NON_EMPTY_GROUP:
        raise Conflict(f"{what}: it has members that do not say what they read; stop them, then try again")
    if code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS):
        raise Unavailable(f"{what}: its coordinator moves; try again")
    raise InvalidRequest(f"{what}: refused with {ErrorCode(code).name}")


def _refuse_members(group: str, found: Any) -> None:
    if found.members:
        clients_there = ", ".join(sorted({printable(one.client_id) for one in found.members}))
        raise Conflict(
            f"group {group} has {counted(len(found.members), 'member')} ({clients_there}): nothing was deleted; stop "
            f"{'it' if len(found.members) == 1 else 'them'}, then try again"
        )
