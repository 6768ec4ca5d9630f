"""What a process shows to the nodes that its pages ask: their addresses are what the nodes themselves reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.settings.choices import ClientAuth
from stratalog.tls.contexts import TlsRules
from stratalog.tls.identity import TlsIdentity
from stratalog.tls.material import TlsFiles
from stratalog_cli.services.process_tls import PLAIN, ProcessTls
from support.certificates import Authority


def token() -> str:
    return "the-token-of-the-cluster"


@pytest.mark.fault("token-stolen-other-certificate")
@pytest.mark.parametrize(
    ("part", "auth", "is_shown"),
    [
        ("meta", ClientAuth.REQUESTED, False),
        ("node/1", ClientAuth.REQUIRED, False),
        ("meta", ClientAuth.NONE, True),
        ("alice", ClientAuth.REQUESTED, True),
    ],
)
def test_no_token_is_shown_to_nodes_where_certificates_are_asked_for(
    tmp_path: Path, part: str, auth: ClientAuth, is_shown: bool
) -> None:
    authority = Authority()
    issued = authority.issue(part) if part == "alice" else authority.issue_member(part)
    rules = TlsRules(auth, asked_by="http.ssl.client.auth")
    identity = TlsIdentity(TlsFiles(str(issued.write_folder(tmp_path / "own", authority.certificate))), rules)
    shown = ProcessTls(identity, rules).token_for_nodes(token)
    assert shown is (token if is_shown else None)


def test_in_plain_text_the_token_is_all_that_there_is() -> None:
    assert PLAIN.token_for_nodes(token) is token
    assert PLAIN.token_for_nodes(None) is None
