"""What a member of the cluster may do, by the identity that its certificate proves. Pure.

A node acts as itself and as no other. The other members never act as a node, and neither does a client. Each
function says in words why something is refused, and None where it is allowed. `shown` is the member that the other end
of a connection has proven to be, None where its certificate names none, or it has shown none.
"""

from __future__ import annotations

from typing import Final

from stratalog.model.commands.mount_commands import BeginMount, CloseVolume, MountCut, OpenVolume
from stratalog.model.commands.retirement_commands import CancelRetirement, RetireNode
from stratalog.model.commands.table_commands import Command, ForgetLocal, NodeCommand, RegisterNode
from stratalog.model.members import Member, Part
from stratalog.model.rights import NODE, Principal

_READS: Final = ("GET", "HEAD", "OPTIONS")
_NOT_OF_NODES: Final = (RetireNode, CancelRetirement, BeginMount, MountCut)
"""Commands of operators and of the service itself; no node sends them."""


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
    if isinstance(command, RegisterNode):
        return why_not_node(shown, command.node.node_id)
    if isinstance(command, OpenVolume | CloseVolume):
        # Of a node that has left: the process that reads its directory has its certificate, and no life.
        return why_not_node(shown, command.node_id)
    caller = command.caller if isinstance(command, NodeCommand) else None
    if caller is not None and (why := why_not_node(shown, caller.node_id)) is not None:
        return why
    if shown is None or shown.part is Part.OPERATOR:
        return None
    name = type(command).__name__
    if shown.part is not Part.NODE:
        return f"{shown} does not ask for {name}"
    if caller is None or isinstance(command, _NOT_OF_NODES):
        return f"a node may not ask for {name}" + (" without naming its life" if caller is None else "")
    if isinstance(command, ForgetLocal) and command.node_id != shown.node_id:
        return why_not_node(shown, command.node_id)
    return None


def why_not_credentials(shown: Member | None) -> str | None:
    """Whether the other end may read the keys of users."""
    if shown is not None and shown.part is Part.NODE:
        return None
    there = "the caller has shown no certificate of a node" if shown is None else f"the caller is {shown}"
    return f"only nodes read the keys of users, and {there}"


# Admin ports --------------------------------------------------------------------------------------------------------
def why_not_method(shown: Member | None, method: str) -> str | None:
    """Whether a member may send such a request to the admin port of a process: nodes and the meta service only ask for
    what pages show."""
    if shown is None or shown.part is Part.OPERATOR or method in _READS:
        return None
    return f"{shown} may read here, and {method} changes something"


# Nodes --------------------------------------------------------------------------------------------------------------
def may_replicate(principal: Principal, replica_id: int) -> bool:
    """Whether the other end of a connection between nodes may fetch as this replica."""
    return principal == Principal(NODE, str(replica_id))
