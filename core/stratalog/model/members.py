"""Members of a cluster: its nodes, its meta service and its operator, as their certificates name them.

A certificate names one member, as a URI among its subject's alternative names: `stratalog://CLUSTER/node/ID`,
`stratalog://CLUSTER/meta` or `stratalog://CLUSTER/operator`. CLUSTER is the name that all certificates of a cluster
share: its id, or any other name that whoever issues them gave it. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from stratalog.model.errors import InvalidRequest
from stratalog.model.rights import NODE, Principal

SCHEME: Final = "stratalog://"
_LAST_ID: Final = 2**31 - 1
_NAME: Final = re.compile(r"stratalog://([A-Za-z0-9._-]{1,255})/(?:node/(0|[1-9][0-9]{0,9})|(meta|operator))")


class Part(StrEnum):
    """What a process of the cluster is."""

    NODE = "node"
    META = "meta"
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True)
class Member:
    cluster: str
    part: Part
    node_id: int | None = None
    """Of a node."""

    def __str__(self) -> str:
        """The URI that names it."""
        return f"{SCHEME}{self.cluster}/{self.part}" + ("" if self.node_id is None else f"/{self.node_id}")

    @property
    def principal(self) -> Principal:
        if self.part is Part.NODE:
            return Principal(NODE, str(self.node_id))
        return Principal(self.part.capitalize(), "")


def member_among(uris: Iterable[str]) -> Member | None:
    """The member that a certificate with these URIs names; None where it names none. Raises: InvalidRequest for a name
    of another form, and for more than one, because nothing says which of them is meant."""
    ours = [uri for uri in uris if uri[: len(SCHEME)].lower() == SCHEME]
    if not ours:
        return None
    if len(ours) > 1:
        raise InvalidRequest(f"the certificate names {len(ours)} members of clusters ({ours[0][:80]!r}, …), not one")
    found = _NAME.fullmatch(ours[0])
    if found is None or (found[2] is not None and int(found[2]) > _LAST_ID):
        raise InvalidRequest(
            f"the certificate names {ours[0][:300]!r}: expected {SCHEME}CLUSTER/node/ID, {SCHEME}CLUSTER/meta or "
            f"{SCHEME}CLUSTER/operator"
        )
    cluster, node_id, part = found.groups()
    return Member(cluster, Part.NODE, int(node_id)) if node_id is not None else Member(cluster, Part(part))
