"""The one error of this package: bytes from a client that do not follow the protocol. The reader of a frame closes the
connection on it: after a wrong length nothing in the stream can be trusted.
"""

from __future__ import annotations

from stratalog.model.errors import Rejected


class MalformedFrame(Rejected):
    """A frame cannot be decoded. Nothing was done with it; close the connection it came from."""


class OtherProtocol(MalformedFrame):
    """What came is none of Kafka's."""
