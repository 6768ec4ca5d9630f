"""Access to an HTTP port: requests must show a token whose role suffices, or come from a member of the cluster, which
its certificate names; except where a route is for anyone, as probes are: they reveal nothing that an attacker could
use, and their senders (a kubelet, a load balancer) have neither.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from stratalog.machines.sasl.token_guesses import TokenGuesses
from stratalog.model.roles import CLUSTER, Caller
from stratalog.model.tokens import NamedToken, digest_of, find_named, is_one_of, may_be_token, shown_token
from stratalog.telemetry.token_file import RoleFile, TokenFile

PROBES: Final = frozenset({"/healthz", "/readyz"})
METRICS: Final = "/metrics"
CHALLENGES: Final = ('Bearer realm="stratalog"', 'Basic realm="stratalog", charset="UTF-8"')
"""The second makes a browser ask its user, and keep what is typed until it is closed."""
WITHOUT_TOKEN: Final = (
    "this port asks for the token of its cluster: send `Authorization: Bearer TOKEN`; `stratalog` takes it from "
    "--token-file FILE (or STRATALOG_TOKEN_FILE), other processes from the setting auth.token.file, and a person logs "
    "in at /login of a port with pages. Or show the certificate of a member of the cluster, where the port speaks TLS"
)
WRONG_TOKEN: Final = (
    "what was sent is not the token of this cluster: compare the first line of the sender's file (--token-file or "
    "STRATALOG_TOKEN_FILE, of other processes the setting auth.token.file) with the auth.token.file of the process "
    "that answers here; it is sent as `Authorization: Bearer TOKEN`"
)


TOO_MANY_GUESSES: Final = (
    "the answers to several wrong tokens of this address are waiting, so this token was not looked at: try again"
)


def _no_named_tokens() -> Sequence[NamedToken]:
    return ()


@dataclass(frozen=True, slots=True)
class HttpAccess:
    """What one port asks for."""

    tokens: Callable[[], Sequence[str]]
    """Those of the cluster."""
    is_metrics_open: bool = False
    """`/metrics` is for anyone."""
    named: Callable[[], Sequence[NamedToken]] = _no_named_tokens
    guesses: TokenGuesses | None = None
    """How wrong tokens are slowed down. None: they are not."""

    def caller(self, authorization: Sequence[str]) -> Caller | None:
        """Whose token a request shows. None: none that is taken."""
        shown = shown_token(authorization)
        return None if shown is None or not may_be_token(shown) else self.caller_of(digest_of(shown))

    def caller_of(self, digest: bytes) -> Caller | None:
        """Whose token has this hash. The tokens of the cluster and the named ones are compared, all of them."""
        is_of_cluster = is_one_of(digest, self.tokens())
        named = find_named(digest, self.named())
        if is_of_cluster:
            return CLUSTER
        return None if named is None else Caller(f"Token:{named.name}", named.role)


def http_access(
    tokens: TokenFile | None,
    roles: RoleFile | None = None,
    *,
    is_metrics_open: bool = False,
    is_for_members: bool = False,
    delay_ms: int = 0,
) -> HttpAccess | None:
    """None where nothing is asked for. `is_for_members`: callers are asked for certificates of members, so without
    tokens all others are refused. `delay_ms`: how long the answer to a wrong token waits at least."""
    if tokens is None and roles is None and not is_for_members:
        return None
    return HttpAccess(
        tokens.all if tokens is not None else tuple,
        is_metrics_open,
        _no_named_tokens if roles is None else roles.all,
        TokenGuesses(delay_ms),
    )
