"""TLS with other processes, as their clients see it: what it is spoken with, and why it failed, in words that name what
to change. OpenSSL's own words name neither the file nor the setting. Pure.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

ClientTls: TypeAlias = Callable[[], ssl.SSLContext]
"""Asked for each connection."""

_DEEPEST: Final = 8
_OWN: Final = "tls.crt of its ssl.certificate.folder"
_PLAIN: Final = (
    "it speaks no TLS there: write http://, or set http.security.protocol=SSL in that process (where it is a node that "
    "another one asks, security.inter.broker.protocol=SSL)"
)
_NOT_TRUSTED: Final = (
    "it does not trust the authority of this process's certificate: compare ca.crt there with the authority that "
    "issued tls.crt of ssl.certificate.folder here"
)
_REASONS: Final = (
    # What OpenSSL says, and what it means here. The first that fits.
    ("certificate has expired", f"its certificate has expired: renew {_OWN}"),
    (
        "certificate is not yet valid",
        "its certificate is not valid yet: compare the clocks of both machines, or renew it",
    ),
    (
        "mismatch",
        "its certificate is not for that host: ask by a name that the certificate has, or issue one with this name",
    ),
    (
        "certificate_verify_failed",
        "its certificate comes from no authority that this process trusts: compare with the one that issued it what is "
        "trusted here, which is ca.crt of ssl.certificate.folder (or ssl.truststore.location); of a command, ca.crt of "
        "STRATALOG_CERTIFICATE_FOLDER, or of the context's --certificate-folder",
    ),
    ("wrong_version_number", _PLAIN),
    ("record_layer_failure", _PLAIN),
    ("packet_length_too_long", _PLAIN),
    (
        "certificate_required",
        "it asks for a certificate, and this process has shown none: set ssl.certificate.folder",
    ),
    ("peer_did_not_return_a_certificate", "it asks for a certificate: set ssl.certificate.folder"),
    (
        "alert_certificate_expired",
        "it says that the certificate of this process has expired: renew tls.crt of ssl.certificate.folder here",
    ),
    ("alert_unknown_ca", _NOT_TRUSTED),
    ("alert_decrypt_error", _NOT_TRUSTED),  # another authority with the name of a known one issued it
    ("alert_bad_certificate", "it refuses the certificate of this process: see tls.crt of ssl.certificate.folder here"),
    ("protocol_version", "it speaks no version of TLS that this process does: compare ssl.enabled.protocols"),
)


def why_no_tls(error: BaseException) -> str | None:
    """None for a failure that has nothing to do with TLS. The cause may be inside."""
    found = next((one for one in _causes(error) if isinstance(one, ssl.SSLError)), None)
    if found is None:
        return None
    reason = getattr(found, "reason", None)
    if isinstance(found, ssl.SSLCertVerificationError) and not reason:
        return str(found.args[-1] if found.args else found)  # of this product (`tls/contexts.py`), in its words
    text = f"{reason or ''} {getattr(found, 'verify_message', '')} {found}".lower()
    for said, meant in _REASONS:
        if said in text:
            return meant
    return f"the handshake of TLS failed ({str(reason or found).replace('_', ' ').lower()[:200]})"


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The outermost first; what a library wraps around a cause, and is one of OpenSSL's errors by its class, is left
    out."""
    seen: BaseException | None = error
    for _ in range(_DEEPEST):
        if seen is None:
            return
        inner = next(
            (
                one
                for name in ("certificate_error", "os_error", "reason")
                if isinstance(one := getattr(seen, name, None), BaseException)
            ),
            None,
        )
        if inner is None:
            yield seen
        seen = inner or seen.__cause__ or seen.__context__
