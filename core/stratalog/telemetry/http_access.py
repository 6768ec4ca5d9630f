"""Access to an HTTP port: requests must show a token, or come from a member of the cluster, which its certificate
names; except for probes. Probes reveal nothing that an attacker could use, and their senders (a kubelet, a load
balancer) have neither.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from stratalog.model.members import Member
from stratalog.model.tokens import shows_token
from stratalog.telemetry.token_file import TokenFile

PROBES: Final = frozenset({"/healthz", "/readyz"})
METRICS: Final = "/metrics"
CLUSTER_TOKEN: Final = "Token:cluster"
"""The principal of whoever shows a token of `auth.token.file`."""
CHALLENGES: Final = ('Bearer realm="stratalog"', 'Basic realm="stratalog", charset="UTF-8"')
"""The second makes a browser ask its user, and keep what is typed until it is closed."""
WITHOUT_TOKEN: Final = (
    "this port asks for the token of its cluster: send `Authorization: Bearer TOKEN`; `stratalog` takes it from "
    "--token-file FILE (or STRATALOG_TOKEN_FILE), other processes from the setting auth.token.file, and a browser asks "
    "for it as a password, the user's name does not matter. Or show the certificate of a member of the cluster, where "
    "the port speaks TLS"
)
WRONG_TOKEN: Final = (
    "what was sent is not the token of this cluster: compare the first line of the sender's file (--token-file or "
    "STRATALOG_TOKEN_FILE, of other processes the setting auth.token.file) with the auth.token.file of the process "
    "that answers here; it is sent as `Authorization: Bearer TOKEN`"
)


@dataclass(frozen=True, slots=True)
class HttpAccess:
    """What one port asks for."""

    tokens: Callable[[], Sequence[str]]
    open_paths: frozenset[str] = PROBES

    def opens(self, path: str | None, authorization: Sequence[str], member: Member | None = None) -> bool:
        """Whether a request may be answered. `path` of the route that was found, None where there is none; `member` of
        this cluster that its sender has proven to be."""
        return path in self.open_paths or member is not None or shows_token(authorization, self.tokens())


def http_access(
    tokens: TokenFile | None, *, is_metrics_open: bool = False, is_for_members: bool = False
) -> HttpAccess | None:
    """None where nothing is asked for. `is_for_members`: callers are asked for certificates of members, so without
    tokens all others are refused."""
    if tokens is None and not is_for_members:
        return None
    all_tokens = tokens.all if tokens is not None else tuple
    return HttpAccess(all_tokens, PROBES | {METRICS} if is_metrics_open else PROBES)
