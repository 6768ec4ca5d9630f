"""What commands show of users: a line for each mechanism with a password, and nothing of its keys."""

from __future__ import annotations

from dataclasses import dataclass

from stratalog.model.scram import ScramMechanism


@dataclass(frozen=True, slots=True, order=True)
class UserMechanism:
    user: str
    mechanism: ScramMechanism
    iterations: int
