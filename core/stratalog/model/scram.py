"""What the metadata keep of a user's SCRAM password: salted keys, with which no client can log in. Kafka's record."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

LEAST_ITERATIONS: Final = 4_096
MOST_ITERATIONS: Final = 16_384


class ScramMechanism(IntEnum):
    """Values as in Kafka's protocol."""

    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2

    @property
    def mechanism_name(self) -> str:
        """As clients name it."""
        return self.name.replace("_", "-")

    @property
    def hash_name(self) -> str:
        """As `hashlib` names it."""
        return "sha256" if self is ScramMechanism.SCRAM_SHA_256 else "sha512"

    @property
    def key_bytes(self) -> int:
        return 32 if self is ScramMechanism.SCRAM_SHA_256 else 64


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """Its keys are in no text of it."""

    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int


@dataclass(frozen=True, slots=True)
class UserCredential:
    """A credential and whose it is: a user has one for each mechanism at most."""

    user: str
    mechanism: ScramMechanism
    credential: ScramCredential

    @property
    def name(self) -> CredentialName:
        return CredentialName(self.user, self.mechanism)


@dataclass(frozen=True, slots=True)
class CredentialName:
    """Which credential is meant."""

    user: str
    mechanism: ScramMechanism
