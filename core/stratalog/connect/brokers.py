"""Whether an address is a broker that takes the client, before librdkafka is given it: librdkafka retries forever where
nothing listens or a login is refused, and cannot tell an HTTP port from a broker.
"""

from __future__ import annotations

from collections.abc import Iterable

from stratalog.connect.client_settings import PLAIN_TEXT, ClientSettings
from stratalog.connect.listener import check_login, needs_tls, what_answers
from stratalog.model.addresses import parse_address
from stratalog.model.errors import InvalidRequest, Unavailable, WrongServer


def parse(address: str) -> tuple[str, int]:
    """Raises: InvalidRequest."""
    try:
        return parse_address(address.strip())
    except ValueError as error:
        raise InvalidRequest(f"bootstrap address {address.strip()!r:.80}: {error}") from None


def require_broker(addresses: Iterable[tuple[str, int]], settings: ClientSettings = PLAIN_TEXT) -> tuple[str, int]:
    """The first that answers as a broker does, and takes the client. Raises: Unavailable with what each does instead;
    InvalidRequest where one is a broker and refuses the client."""
    reasons = []
    for host, port in addresses:
        try:
            check_broker(host, port, settings)
            return host, port
        except Unavailable as error:
            reasons.append(str(error))
    raise Unavailable(f"{'; '.join(reasons)}; --bootstrap takes the addresses where Kafka clients connect (--listen)")


def check_broker(host: str, port: int, settings: ClientSettings = PLAIN_TEXT) -> None:
    """Raises: Unavailable if nothing answers at this address; WrongServer if it is not such a listener; InvalidRequest
    if it does not take the client."""
    if not settings.protocol.is_tls:
        where = f"{host}:{port}"
        try:
            kind = what_answers(host, port)
        except OSError as error:
            raise Unavailable(f"{where} does not answer ({error.strerror or error})") from None
        match kind:
            case "nothing":
                raise Unavailable(f"{where} does not answer")
            case "http":
                raise WrongServer(f"{where} speaks HTTP: an admin or meta port, no Kafka listener")
            case "tls":
                raise WrongServer(needs_tls(where, settings))
            case "other":
                raise WrongServer(f"{where} does not speak the Kafka protocol")
    check_login(host, port, settings)
