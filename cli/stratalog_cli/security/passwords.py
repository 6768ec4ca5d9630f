"""New passwords of SCRAM users: from a file, from standard input, from the environment, or made here. Never from the
command line, which every user of the machine can read.

Only a salted password leaves this process.
"""

from __future__ import annotations

import os
import secrets
import string
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from stratalog.machines.sasl.scram import salt_from, salted
from stratalog.model.errors import InvalidRequest
from stratalog.model.scram import LEAST_ITERATIONS, MOST_ITERATIONS, ScramMechanism
from stratalog_cli.security.certificate_folder import read_file

NEW_PASSWORD_VARIABLE: Final = "STRATALOG_NEW_PASSWORD"
_LENGTH: Final = 32
_SIGNS: Final = string.ascii_letters + string.digits
"""No sign that a shell, a URL or a properties file would take for something else; 190 bits."""
_SALT_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class SaltedPassword:
    """What leaves this process of a password."""

    mechanism: ScramMechanism
    salt: bytes = field(repr=False)
    salted: bytes = field(repr=False)
    iterations: int


def generated_password() -> str:
    return "".join(secrets.choice(_SIGNS) for _ in range(_LENGTH))


def given_password(file: Path | None) -> str | None:
    """What the file, standard input (`-`) or the environment holds; None where none of them was named.

    Raises: InvalidRequest, which quotes nothing of it; NotFound, Unavailable for the file.
    """
    if file is None:
        text = os.environ.get(NEW_PASSWORD_VARIABLE)
        return None if text is None else _checked(text, NEW_PASSWORD_VARIABLE)
    if str(file) == "-":
        return _checked(sys.stdin.readline(), "standard input")
    try:
        text = read_file(file).decode()
    except UnicodeDecodeError:
        raise InvalidRequest(f"{file} holds no password: it is not text") from None
    return _checked(text.partition("\n")[0], str(file))


def _checked(text: str, source: str) -> str:
    password = text.rstrip("\r\n")
    if not password:
        raise InvalidRequest(f"{source} holds no password: its first line is empty")
    if not password.isprintable():
        raise InvalidRequest(f"{source} holds no password: there are control characters in its first line")
    return password


def salted_password(password: str, mechanism: ScramMechanism, iterations: int) -> SaltedPassword:
    """Cost: some milliseconds of CPU. Raises: InvalidRequest."""
    if not LEAST_ITERATIONS <= iterations <= MOST_ITERATIONS:
        raise InvalidRequest(f"--iterations {iterations}: expected {LEAST_ITERATIONS} to {MOST_ITERATIONS}")
    salt = salt_from(secrets.token_bytes(_SALT_BYTES))
    return SaltedPassword(mechanism, salt, salted(mechanism, password, salt, iterations), iterations)
