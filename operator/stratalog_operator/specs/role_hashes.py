"""What opens the HTTP ports of a cluster whose parts prove who they are by certificates: hashes of tokens, in a Secret
that the operator writes. A pod that is taken over holds none of these tokens.

Without certificates the parts show the cluster's token to each other, so each pod has it, and the Secret of a person is
mounted as it is.

Pure. Source: docs/kubernetes-security.md, docs/security.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from stratalog.model.roles import Role
from stratalog.model.tokens import (
    MOST_NAMED,
    NamedToken,
    digest_of,
    hashed_line,
    parse_named_tokens,
    require_others,
)
from stratalog_operator.specs.objects import Cluster

OF_META: Final = "roles"
"""In the Secret: tokens of people and programs, for the meta service, which knows the cluster's token besides."""
OF_NODES: Final = "node-roles"
"""For storage nodes and readers of volumes: the same, and the cluster's token with the role of a viewer."""
KEY: Final = "roles"
"""In the Secret that a person writes."""
TOKEN_NAME: Final = "cluster-token"
"""How the audit log of a node names whoever shows the cluster's token."""


def role_hashes_secret(cluster: Cluster) -> str:
    return f"{cluster.name}-role-hashes"


def hashed_roles(cluster: Cluster, text: str, tokens: Sequence[str]) -> dict[str, str]:
    """What the Secret has under each key. `text`: what the person's Secret has (`ROLE NAME TOKEN` a line), `tokens`:
    those of the cluster. Raises: InvalidRequest for a text that processes would refuse; no token is in it."""
    place = f"{KEY} of Secret {cluster.namespace}/{cluster.spec.meta.role_tokens_secret_ref}"
    named = parse_named_tokens(text, place)
    require_others(named, tokens, place)
    return {OF_META: _lines(named), OF_NODES: _lines((*named, *_viewers(named, tokens)))}


def _viewers(named: Sequence[NamedToken], tokens: Iterable[str]) -> list[NamedToken]:
    """The meta service, whose pods hold the cluster's token, is a viewer at nodes by its certificate, too: so the token
    opens nothing more to a pod that is taken over. Lines of people go first: theirs are not lost to these. A Secret may
    have the same token on two lines, which a file of named tokens may not."""
    if any(one.name == TOKEN_NAME and one.role is not Role.VIEWER for one in named):
        return []
    made = [NamedToken(TOKEN_NAME, Role.VIEWER, digest_of(token.encode())) for token in dict.fromkeys(tokens)]
    return made[: max(0, MOST_NAMED - len(named))]


def _lines(named: Iterable[NamedToken]) -> str:
    return "".join(f"{hashed_line(one)}\n" for one in named)
