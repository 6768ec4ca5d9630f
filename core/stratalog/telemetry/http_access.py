"""Access to an HTTP port that has a token: requests must show it, except for probes. Probes reveal nothing that an
attacker could use, and their senders (a kubelet, a load balancer) have no token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from stratalog.model.tokens import shows_token
from stratalog.telemetry.token_file import TokenFile

PROBES: Final = frozenset({"/healthz", "/readyz"})
METRICS: Final = "/metrics"
CHALLENGES: Final = ('Bearer realm="stratalog"', 'Basic realm="stratalog", charset="UTF-8"')
"""The second makes a browser ask its user, and keep what is typed until it is closed."""
WITHOUT_TOKEN: Final = (
    "this port asks for the token of its cluster: send `Authorization: Bearer TOKEN`; `stratalog` takes it from "
    "--token-file FILE (or STRATALOG_TOKEN_FILE), other processes from the setting auth.token.file, and a browser asks "
    "for it as a password, the user's name does not matter"
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

    def opens(self, path: str | None, authorization: Sequence[str]) -> bool:
        """Whether a request may be answered. `path` of the route that was found, None where there is none."""
        return path in self.open_paths or shows_token(authorization, self.tokens())


def http_access(tokens: TokenFile | None, *, is_metrics_open: bool = False) -> HttpAccess | None:
    """None where no token is asked for."""
    if tokens is None:
        return None
    return HttpAccess(tokens.all, PROBES | {METRICS} if is_metrics_open else PROBES)
