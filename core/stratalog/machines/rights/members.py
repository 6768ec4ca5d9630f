"""What a member of the cluster may do, by the identity that its certificate proves. Pure.

A node acts as itself and as no other. The other members never act as a node, and neither does a client. Each
function says in words why something is refused, and None where it is allowed. `shown` is the member that the other end
of a connection has proven to be, None where its certificate names none, or it has shown none.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, TypeAlias, assert_never

from stratalog.machines.tiering.chunk_merging import COMPACTION_LOCK
from stratalog.machines.tiering.upload_duty import SWEEP_LEASE_MS, SWEEPER
from stratalog.model.commands import mount_commands as mounts
from stratalog.model.commands import retirement_commands as retirement
from stratalog.model.commands import rights_commands as rights
from stratalog.model.commands import table_commands as commands
from stratalog.model.commands.table_commands import Command, NodeCommand
from stratalog.model.members import Member, Part
from stratalog.model.metadata import Life, life_name
from stratalog.model.mounts import DATA_SET_PREFIX, data_set_name
from stratalog.model.rights import NODE, Principal


class Senders(StrEnum):
    """The senders of a command to the meta service."""

    ITSELF = "the node that the command names"
    """It proves that by its certificate alone: it has no life yet, or none any more."""
    NODES = "nodes"
    """In the name of their present life."""
    NODES_AND_PEOPLE = "nodes for their clients, and operators"
    PEOPLE = "operators"
    """The operator, and whoever shows the token without the certificate of a member: commands and jobs."""
    HOLDERS = "the holder of the lock"
    """A node, of its own lock; a job, of the lock of jobs that merge chunks."""


SENDERS: Final[dict[type[object], Senders]] = {
    commands.RegisterNode: Senders.ITSELF,
    mounts.OpenVolume: Senders.ITSELF,
    mounts.CloseVolume: Senders.ITSELF,
    commands.ForgetLocal: Senders.NODES,
    commands.ReportLostCopies: Senders.NODES,
    commands.ReportFaultyCopies: Senders.NODES,
    commands.WidenTopic: Senders.NODES,
    commands.AdvanceLogStart: Senders.NODES,
    commands.PrepareSegment: Senders.NODES,
    commands.RollSegment: Senders.NODES,
    commands.SealSegment: Senders.NODES,
    commands.ReportReplica: Senders.NODES,
    commands.ProposeIsr: Senders.NODES,
    commands.PromiseFence: Senders.NODES,
    commands.PurgeSegments: Senders.NODES,
    commands.CommitParts: Senders.NODES,
    commands.ReplaceParts: Senders.NODES,
    commands.CompleteRemote: Senders.NODES,
    commands.AllocateProducerIds: Senders.NODES,
    mounts.TakeMount: Senders.NODES,
    mounts.DoubtMount: Senders.NODES,
    mounts.ReleaseMount: Senders.NODES,
    retirement.ReportSighting: Senders.NODES,
    retirement.ReportInventory: Senders.NODES,
    commands.CreateTopic: Senders.NODES_AND_PEOPLE,
    commands.DeleteTopic: Senders.NODES_AND_PEOPLE,
    commands.AddShards: Senders.NODES_AND_PEOPLE,
    commands.AlterTopic: Senders.NODES_AND_PEOPLE,
    mounts.CreateMount: Senders.NODES_AND_PEOPLE,
    mounts.MoveMount: Senders.NODES_AND_PEOPLE,
    mounts.EndMount: Senders.NODES_AND_PEOPLE,
    rights.CreateRules: Senders.NODES_AND_PEOPLE,
    rights.DeleteRules: Senders.NODES_AND_PEOPLE,
    rights.AlterCredentials: Senders.NODES_AND_PEOPLE,
    rights.AlterQuotas: Senders.NODES_AND_PEOPLE,
    commands.SealTopic: Senders.PEOPLE,
    commands.RollElsewhere: Senders.PEOPLE,
    commands.BeginRecovery: Senders.PEOPLE,
    commands.SealUnclean: Senders.PEOPLE,
    commands.ReplaceManifest: Senders.PEOPLE,
    mounts.MountCut: Senders.PEOPLE,
    mounts.BeginMount: Senders.PEOPLE,
    retirement.RetireNode: Senders.PEOPLE,
    retirement.CancelRetirement: Senders.PEOPLE,
    commands.AcquireLock: Senders.HOLDERS,
    commands.ReleaseLock: Senders.HOLDERS,
}
"""Of each command that is asked for over the network: another one is refused."""

_OfLock: TypeAlias = (
    commands.AcquireLock
    | commands.ReleaseLock
    | commands.CommitParts
    | commands.ReplaceParts
    | commands.CompleteRemote
    | commands.ReplaceManifest
)


def why_not_own(own: Member | None, part: Part, node_id: int | None = None, *, is_needed: bool = False) -> str | None:
    """Whether a process that is this part of a cluster may have a certificate of that name. One that names no member
    does where no other member is asked for a name (`is_needed`)."""
    uri = f"stratalog://CLUSTER/{part}" + ("" if node_id is None else f"/{node_id}")
    if own is None:
        return f"its certificate names no member of a cluster: it needs the URI {uri}" if is_needed else None
    if (own.part, own.node_id) == (part, node_id):
        return None
    return f"its certificate names {own}, and this process needs {uri}: give it its own certificate"


def why_not_of_cluster(own: Member, shown: Member) -> str | None:
    """Whether a certificate that names a member names one of this cluster."""
    if own.cluster == shown.cluster:
        return None
    return f"the certificate names a member of cluster {shown.cluster!r}, and this one is {own.cluster!r}"


def why_not_dialled(own: Member, shown: Member | None, part: Part, node_id: int | None = None) -> str | None:
    """Whether the end that was dialled is a member of this part, and that node where one is named."""
    is_wanted = shown is not None and (shown.cluster, shown.part) == (own.cluster, part)
    if is_wanted and shown is not None and node_id in (None, shown.node_id):
        return None
    there = f"names {shown}" if shown is not None else "names no member of a cluster"
    wanted = f"stratalog://{own.cluster}/{part}" + ("" if node_id is None else f"/{node_id}")
    return f"its certificate {there}, and {wanted} is expected there"


# The meta service ---------------------------------------------------------------------------------------------------
def why_not_node(shown: Member | None, node_id: int) -> str | None:
    """Whether the other end may act as this node."""
    if shown is not None and shown.part is Part.NODE and shown.node_id == node_id:
        return None
    if shown is None:
        return (
            f"only node {node_id} may do this, and the caller has shown no certificate of a member: its certificate "
            f"must name stratalog://CLUSTER/node/{node_id} (ssl.certificate.folder)"
        )
    return f"only node {node_id} may do this, and the certificate of the caller names {shown}"


def why_not_command(shown: Member | None, command: Command[object]) -> str | None:
    """Whether the other end may ask the meta service for this change."""
    caller = command.caller if isinstance(command, NodeCommand) else None
    if caller is not None and (why := why_not_node(shown, caller.node_id)) is not None:
        return why
    if (named := _named_node(command)) is not None and (why := why_not_node(shown, named)) is not None:
        return why
    name, senders = type(command).__name__, SENDERS.get(type(command))
    if shown is not None and shown.part not in (Part.NODE, Part.OPERATOR):
        return f"{shown} does not ask for {name}"
    is_node = shown is not None and shown.part is Part.NODE
    match senders:
        case Senders.ITSELF:
            return None
        case Senders.NODES:
            if caller is None:
                return _why_without_life(name, is_node=is_node)
        case Senders.PEOPLE:
            if is_node:
                return f"a node may not ask for {name}"
        case Senders.NODES_AND_PEOPLE | Senders.HOLDERS:
            if is_node and caller is None:
                return _why_without_life(name, is_node=True)
        case None:
            return f"{name} is not asked for over the network"
        case _:
            assert_never(senders)
    return _why_not_holder(caller, command) if isinstance(command, _OfLock) else None


def _named_node(command: Command[object]) -> int | None:
    """The node that a command is about, where only that node asks for it."""
    match command:
        case commands.RegisterNode(node=node):
            return node.node_id
        case commands.ForgetLocal(node_id=node_id, caller=Life()):
            return node_id
        case mounts.OpenVolume(node_id=node_id) | mounts.CloseVolume(node_id=node_id):
            return node_id
        case _:
            return None


def _why_without_life(name: str, *, is_node: bool) -> str:
    if is_node:
        return f"a node may not ask for {name} without naming its life"
    return f"only nodes ask for {name}, each in the name of its own life, and the caller names none"


def _why_not_holder(caller: Life | None, command: _OfLock) -> str | None:
    """Whether the lock is the caller's own. A node also takes the locks of others for a moment, as the sweeper: that
    fences what they wrote before."""
    match command:
        case commands.AcquireLock(name=name, holder=holder):
            pass
        case _:
            name, holder = command.lock.name, command.lock.holder
    if caller is None:
        return None if name == COMPACTION_LOCK else f"lock {name!r:.80} belongs to a node, which asks for it itself"
    own, is_acquired = life_name(caller.node_id, caller.epoch), isinstance(command, commands.AcquireLock)
    if f"{holder}/".startswith(f"{own}/") and (not is_acquired or name == data_set_name(caller.node_id)):
        return None
    if isinstance(command, commands.AcquireLock) and holder == SWEEPER and name.startswith(DATA_SET_PREFIX):
        is_short = command.ttl_ms <= SWEEP_LEASE_MS
        return None if is_short else f"a sweeper holds lock {name!r:.80} for {SWEEP_LEASE_MS} ms, not {command.ttl_ms}"
    return (
        f"{own} holds lock {data_set_name(caller.node_id)!r} under its own name, and not {name!r:.80} under "
        f"{holder!r:.80}"
    )


def sees_tokens(shown: Member | None) -> bool:
    """Whether the other end may read the tokens of lives. Nodes compare them; so does the process that reads the
    directory of a retired one."""
    return shown is not None and shown.part is Part.NODE


def why_not_credentials(shown: Member | None, *, is_retired: bool = False) -> str | None:
    """Whether the other end may read the keys of users. `is_retired`: it is a node that left for good."""
    if shown is not None and shown.part is Part.NODE:
        return f"{shown} was retired, and serves no users any more" if is_retired else None
    there = "the caller has shown no certificate of a node" if shown is None else f"the caller is {shown}"
    return f"only nodes read the keys of users, and {there}"


# Nodes --------------------------------------------------------------------------------------------------------------
def may_replicate(principal: Principal, replica_id: int) -> bool:
    """Whether the other end of a connection between nodes may fetch as this replica."""
    return principal == Principal(NODE, str(replica_id))
