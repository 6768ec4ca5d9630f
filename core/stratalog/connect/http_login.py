"""How a process logs in to the meta service and to admin ports: which token it shows, and which certificates it trusts.

A login holds names of files, and no secret: it may be stored, shown and sent to another machine. Each process reads the
files itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from stratalog.connect import shown_certificate, shown_token
from stratalog.connect.contexts import Context

if TYPE_CHECKING:
    from stratalog.model.tokens import Token
    from stratalog.tls.outgoing import ClientTls

_NAMED_BY: Final = f"{shown_certificate.VARIABLE}, the option certificateFolder, or the context"


@dataclass(frozen=True, slots=True)
class HttpLogin:
    token_file: str = ""
    """Empty: no token is shown."""
    certificate_folder: str = ""
    """Empty: the authorities of the system are trusted."""

    @property
    def token(self) -> Token | None:
        """Raises: InvalidRequest for a file that cannot be read, or holds no token."""
        return shown_token.token_of(self.token_file)

    @property
    def tls(self) -> ClientTls | None:
        """Raises: InvalidRequest for files that cannot be used."""
        return shown_certificate.tls_of(self.certificate_folder, named_by=_NAMED_BY)


def http_login(environment: Mapping[str, str], context: Context | None = None) -> HttpLogin:
    """`context`: the one of the addresses. The environment goes before it."""
    token_file, folder = environment.get(shown_token.VARIABLE, ""), environment.get(shown_certificate.VARIABLE, "")
    if context is not None:
        token_file, folder = token_file or context.token_file or "", folder or context.certificate_folder or ""
    return HttpLogin(token_file, folder)
