"""How a command reaches the parts of a cluster on this machine: what it shows to them, and what they must prove."""

from __future__ import annotations

import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stratalog.connect.shown_certificate import tls_of
from stratalog.connect.shown_token import cluster_token
from stratalog.model.tokens import Token, bearer
from stratalog_cli.cluster.plan import AUTHORITY_FOLDER, ETCD_CLIENT, OPERATOR, SECURITY_FOLDER, Part, Plan, Role

if TYPE_CHECKING:
    from stratalog.tls.outgoing import ClientTls

_NAMED_BY: Final = "it was made by `stratalog cluster start --secure`"


@dataclass(frozen=True, slots=True)
class PartsAccess:
    """By default in plain text, without a token. Certificates are those of the moment at which it was made."""

    token: Token | None = None
    """Shown to nodes and the meta service; never to etcd, which does not know it. None where a certificate is shown."""
    tls: ClientTls | None = None
    """To nodes and the meta service, with the certificate of an operator; None: they speak plain text."""
    etcd_tls: ClientTls | None = None

    def request(self, part: Part, what: str, path: str) -> urllib.request.Request:
        """To this address of a part, without the token."""
        scheme = "http" if self._tls_of(part) is None else "https"
        return urllib.request.Request(f"{scheme}://{part.addresses[what]}{path}")

    def with_token(self, request: urllib.request.Request) -> urllib.request.Request:
        if self.token is not None:
            request.add_unredirected_header("Authorization", bearer(self.token()))
        return request

    def opener(self, part: Part) -> urllib.request.OpenerDirector:
        # The environment's proxy is for the world outside.
        handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
        tls = self._tls_of(part)
        if tls is not None:
            handlers.append(urllib.request.HTTPSHandler(context=tls()))
        return urllib.request.build_opener(*handlers)

    def admin_url(self, part: Part) -> str:
        return f"{'http' if self.tls is None else 'https'}://{part.addresses['admin']}"

    def _tls_of(self, part: Part) -> ClientTls | None:
        return self.etcd_tls if part.role is Role.ETCD else self.tls


IN_THE_OPEN: Final = PartsAccess()


def parts_access(plan: Plan, directory: Path) -> PartsAccess:
    """Blocking. Raises: InvalidRequest for a file that cannot be read, or used."""
    choices, folder = plan.choices, directory / SECURITY_FOLDER
    own = folder / OPERATOR
    if not own.exists():  # it was made by an earlier version, and not started since
        own = folder / AUTHORITY_FOLDER
    return PartsAccess(
        None if choices.parts_have_tls else cluster_token(choices.settings),
        _tls(own) if choices.parts_have_tls else None,
        _tls(folder / ETCD_CLIENT) if choices.etcd_has_tls else None,
    )


def _tls(folder: Path) -> ClientTls | None:
    return tls_of(str(folder), named_by=_NAMED_BY)
