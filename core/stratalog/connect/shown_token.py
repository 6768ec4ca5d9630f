"""The token that commands show: of the file that `--token-file`, or STRATALOG_TOKEN_FILE, names.

The option stands before the command and becomes the variable, so that every command finds it in one place. A token
itself is never on a command line: every user of the machine can see that.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from stratalog.model.tokens import Token

VARIABLE: Final = "STRATALOG_TOKEN_FILE"


def shown_token() -> Token | None:
    """None where no file is named. Raises: InvalidRequest for one that cannot be read, or holds no token."""
    return token_of(os.environ.get(VARIABLE, ""))


def cluster_token(settings: Mapping[str, str]) -> Token | None:
    """Of a cluster on this machine: what its parts ask for, unless another file is named."""
    return shown_token() or token_of(settings.get("auth.token.file", ""))


def token_of(path: str) -> Token | None:
    """None where no file is named. Raises: InvalidRequest for one that cannot be read, or holds no token."""
    if not path:
        return None
    from stratalog.telemetry.token_file import token_file

    found = token_file(path)
    return None if found is None else found.first
