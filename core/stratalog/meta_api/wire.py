"""What the meta service and its clients say to each other over HTTP, in JSON made from the records themselves.

A command is `POST /v1/commands/<its name>` with its fields as the body, and is answered with what it answers. Lines of
snapshots and watches are in `streams` and `watch_lines`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Generic, TypeAlias, TypeVar, get_args
from urllib.parse import urlsplit
from uuid import UUID

from stratalog.machines.plans.heartbeat_history import Course
from stratalog.machines.plans.shard_troubles import Trouble
from stratalog.meta_api.json_shape import JsonShape, NotOfShape, field_name
from stratalog.meta_api.problems import Problem, from_problem
from stratalog.model.bounds import Count
from stratalog.model.commands import table_commands
from stratalog.model.errors import OutcomeUnknown, StratalogError
from stratalog.model.metadata import Heard, Heartbeat, Node
from stratalog.model.mounts import Mount
from stratalog.model.segment import Segment
from stratalog.model.topic import Shard, Topic
from stratalog.model.views.cluster_lists import SegmentPage, ShardPage, TopicPage, TroublePage
from stratalog.model.views.outline import Outline
from stratalog.model.views.retirement_status import RetirementStatus
from stratalog.model.views.rights_view import RightsView
from stratalog.model.views.status_page import Overview

R = TypeVar("R")


# Answers to reads that are more than one record ------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class ClusterInfo:
    cluster_id: str
    version: Count
    nodes: Count
    topics: Count
    shards: Count
    why_no_changes: str | None
    """Why changes are refused; null while they are not."""


@dataclass(frozen=True, slots=True)
class NodeList:
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class MountList:
    items: tuple[Mount, ...]


@dataclass(frozen=True, slots=True)
class TopicList:
    items: tuple[Topic, ...]


@dataclass(frozen=True, slots=True)
class TopicIds:
    items: tuple[UUID, ...]


@dataclass(frozen=True, slots=True)
class SegmentList:
    items: tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class RetirementList:
    items: tuple[RetirementStatus, ...]


@dataclass(frozen=True, slots=True)
class TroubleList:
    items: tuple[Trouble, ...]


@dataclass(frozen=True, slots=True)
class CourseList:
    items: tuple[Course, ...]


CLUSTER: Final[JsonShape[ClusterInfo]] = JsonShape(ClusterInfo)
NODES: Final[JsonShape[NodeList]] = JsonShape(NodeList)
HEARTBEAT: Final[JsonShape[Heartbeat]] = JsonShape(Heartbeat, is_asked=True)
HEARD: Final[JsonShape[Heard]] = JsonShape(Heard)
MOUNTS: Final[JsonShape[MountList]] = JsonShape(MountList)
TOPIC: Final[JsonShape[Topic]] = JsonShape(Topic)
TOPICS: Final[JsonShape[TopicList]] = JsonShape(TopicList)
TOPIC_IDS: Final[JsonShape[TopicIds]] = JsonShape(TopicIds)
SHARD: Final[JsonShape[Shard]] = JsonShape(Shard)
SEGMENT: Final[JsonShape[Segment]] = JsonShape(Segment)
TROUBLES: Final[JsonShape[TroubleList]] = JsonShape(TroubleList)
SEGMENTS: Final[JsonShape[SegmentList]] = JsonShape(SegmentList)
RETIREMENTS: Final[JsonShape[RetirementList]] = JsonShape(RetirementList)
OVERVIEW: Final[JsonShape[Overview]] = JsonShape(Overview)
OUTLINE: Final[JsonShape[Outline]] = JsonShape(Outline)
RIGHTS: Final[JsonShape[RightsView]] = JsonShape(RightsView)
COURSES: Final[JsonShape[CourseList]] = JsonShape(CourseList)
TOPIC_PAGE: Final[JsonShape[TopicPage]] = JsonShape(TopicPage)
SHARD_PAGE: Final[JsonShape[ShardPage]] = JsonShape(ShardPage)
SEGMENT_PAGE: Final[JsonShape[SegmentPage]] = JsonShape(SegmentPage)
TROUBLE_PAGE: Final[JsonShape[TroublePage]] = JsonShape(TroublePage)
PROBLEM: Final[JsonShape[Problem]] = JsonShape(Problem)


# Commands -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class CommandWire(Generic[R]):
    """One kind of command: where it is sent, what is sent, what comes back."""

    kind: type[table_commands.Command[R]]
    answers: object
    """The type of its answer."""
    path: str
    body: JsonShape[table_commands.Command[R]]
    answer: JsonShape[R]


def _wire(kind: type[table_commands.Command[Any]]) -> CommandWire[Any]:
    (base,) = vars(kind)["__orig_bases__"]  # Command[...], which says what it answers
    (answers,) = get_args(base)
    path = f"/v1/commands/{field_name(kind).replace('_', '-')}"
    return CommandWire(kind, answers, path, JsonShape(kind, is_asked=True), JsonShape(answers))


COMMAND_WIRES: Final = {kind: _wire(kind) for kind in table_commands.COMMANDS}


def wire_of(command: table_commands.Command[R]) -> CommandWire[R]:
    return COMMAND_WIRES[type(command)]


# Commands that go together --------------------------------------------------------------------------------------
SegmentCommand: TypeAlias = (
    table_commands.PrepareSegment
    | table_commands.RollSegment
    | table_commands.SealSegment
    | table_commands.ReportReplica
    | table_commands.ProposeIsr
    | table_commands.BeginRecovery
    | table_commands.PromiseFence
    | table_commands.CompleteRemote
)
"""About one segment, and answered with it."""


@dataclass(frozen=True, slots=True)
class SegmentCommands:
    """Commands that have nothing to do with each other; their answers come in the same order."""

    items: tuple[SegmentCommand, ...]


SEGMENT_COMMANDS_PATH: Final = "/v1/segment-commands"
SEGMENT_COMMANDS: Final[JsonShape[SegmentCommands]] = JsonShape(SegmentCommands, is_asked=True)
SegmentAnswers: TypeAlias = tuple[Segment | StratalogError, ...]
SEGMENT_ANSWERS: Final[JsonShape[SegmentAnswers]] = JsonShape(SegmentAnswers)


# Problems -------------------------------------------------------------------------------------------------------
def read_problem(status: int, body: bytes, where: str) -> StratalogError:
    """The error in an answer that is not a success. An answer that no Stratalog service wrote (a proxy's page, a
    truncated body) leaves open what was done: `OutcomeUnknown`."""
    try:
        return from_problem(PROBLEM.read(body))
    except NotOfShape:
        if status < 500:
            return OutcomeUnknown(foreign(where, f"it answers {status}, and not as a meta service does"))
        text = body[:200].decode("utf-8", "replace").strip()
        return OutcomeUnknown(
            f"{where} answered {status}, and not as a meta service does ({text!r}): is this its address? It is what "
            "--listen of `stratalog meta start` says"
        )


def foreign(where: str, how: str) -> str:
    """For what answers, and not as a meta service does; `where` is method and URL."""
    method, _, url = where.partition(" ")
    parts = urlsplit(url)
    return (
        f"what answers at {parts.scheme}://{parts.netloc} is not a meta service ({method} {parts.path}: {how}); "
        f"the meta "
        "service's address is what --listen of `stratalog meta start` says"
    )
