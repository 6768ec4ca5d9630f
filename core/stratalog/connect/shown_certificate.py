"""What commands speak TLS with (https://): the authorities that they trust, and the certificate that they show.

Both are in the folder that STRATALOG_CERTIFICATE_FOLDER names, as a mounted Secret has them: `ca.crt`, and perhaps
`tls.crt` and `tls.key`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from stratalog.tls.outgoing import ClientTls

VARIABLE: Final = "STRATALOG_CERTIFICATE_FOLDER"


def shown_tls() -> ClientTls | None:
    """None where no folder is named: the authorities of the system are trusted then. Raises: InvalidRequest for files
    that cannot be used."""
    return tls_of(os.environ.get(VARIABLE, ""))


def tls_of(folder: str, *, named_by: str = VARIABLE) -> ClientTls | None:
    """None where no folder is named. Raises: InvalidRequest for files that cannot be used."""
    if not folder:
        return None
    from stratalog.tls.contexts import TlsRules
    from stratalog.tls.identity import TlsIdentity
    from stratalog.tls.material import TlsFiles

    identity = TlsIdentity(TlsFiles(folder, named_by=named_by), TlsRules(), servers=())
    return lambda: identity.client
