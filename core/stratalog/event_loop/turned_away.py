"""Why a port turns a client away: its metrics have a count for each."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class TurnedAway(StrEnum):
    FULL = "full"
    """All places are taken, and none comes free."""
    ADDRESS = "address"
    """Its address has all places that it may have."""
    RATE = "rate"
    """Its address opens connections too fast (connection_creation_rate)."""
    MADE_ROOM = "made_room"
    """It stood idle or unfinished, and others needed its place."""
    TRIAL = "trial"
    """It was let in for a node's token, and showed none."""
    OLD_RIGHTS = "old_rights"
    """The rules that this node has are too old to serve clients by."""
    HANDSHAKES = "handshakes"
    """Too many handshakes of TLS were under way."""
    HANDSHAKE = "handshake"
    """Its handshake of TLS failed, was refused, or took too long."""
    NO_TLS = "no_tls"
    """It speaks no TLS, and the port does."""
    OTHER_PROTOCOL = "other_protocol"
    """It speaks another protocol, or a version that is not served."""


_IN_A_HANDSHAKE: Final = (TurnedAway.HANDSHAKES, TurnedAway.HANDSHAKE, TurnedAway.NO_TLS)
OF_HTTP: Final = (
    TurnedAway.FULL,
    TurnedAway.ADDRESS,
    TurnedAway.MADE_ROOM,
    *_IN_A_HANDSHAKE,
    TurnedAway.OTHER_PROTOCOL,
)
OF_KAFKA: Final = tuple(TurnedAway)
OF_VOLUMES: Final = (
    TurnedAway.FULL,
    TurnedAway.MADE_ROOM,
    TurnedAway.TRIAL,
    *_IN_A_HANDSHAKE,
    TurnedAway.OTHER_PROTOCOL,
)
