"""Checks a Kafka listener as a client meets it: address, TLS, certificate, login, and where it sends its clients.

Nothing is written there. A password is sent only to listeners whose certificate is trusted, as any client does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from stratalog.connect.brokers import check_broker
from stratalog.connect.client_settings import ClientSettings
from stratalog.connect.listener import ListenerConnection
from stratalog.connect.missing_right import Right, missing_right
from stratalog.model.addresses import is_loopback, written
from stratalog.model.counting import counted
from stratalog.model.errors import InvalidRequest, StratalogError, Unavailable
from stratalog.model.rights import Operation, ResourceType
from stratalog.telemetry.printable import printable
from stratalog_cli.doctor.examination import Examination, Step

_METADATA: Final = 3
_METADATA_VERSION: Final = 5
_TIMEOUT_S: Final = 10.0
_SOON: Final = timedelta(days=30)
_NO_STEP: Final = "see docs/secure-a-listener.md"
_NO_ANSWER: Final = "check the address, that a node runs there, and that this machine can reach the port"


def check_listeners(
    addresses: Iterable[tuple[str, int]], settings: ClientSettings, topics: Sequence[str], step: Step
) -> list[Examination]:
    return [_check(host, port, settings, topics, step) for host, port in addresses]


def _check(host: str, port: int, settings: ClientSettings, topics: Sequence[str], step: Step) -> Examination:
    where = written(host, port)
    seen = Examination(where, step, is_listener=True)
    step(where)
    seen.settings["protocol"] = settings.protocol.value
    try:
        check_broker(host, port, settings)
        with ListenerConnection(host, port, settings, timeout_s=_TIMEOUT_S) as connection:
            _note_tls(connection, seen)
            _note_login(connection, host, seen)
            brokers = connection.ask(_METADATA, _METADATA_VERSION, topics=(), allow_auto_topic_creation=False)
            for topic in topics:
                _note_rights(connection, topic, seen)
    except Unavailable as error:
        _found(seen, where, error)
        seen.why_unchecked = str(error)
        return seen
    except StratalogError as error:
        _found(seen, where, error)
        return seen
    _check_advertised(brokers, (host, port), settings, seen)
    return seen


def _found(seen: Examination, place: str, error: StratalogError, before: str = "") -> None:
    """An error ends with what to do next."""
    what, _, next_step = str(error).removeprefix(f"{place}: ").rpartition(": ")
    otherwise = _NO_ANSWER if isinstance(error, Unavailable) else _NO_STEP
    seen.error(place, f"{before}{what or next_step}", next_step if what else otherwise)


def _note_tls(connection: ListenerConnection, seen: Examination) -> None:
    tls = connection.tls
    if tls is None:
        return
    cipher = tls.cipher()
    seen.settings["TLS"] = f"{tls.version()}, {cipher[0]}" if cipher else str(tls.version())
    from stratalog.tls.shown import first_of_chain, shown_certificate

    where, settings = connection.where, connection.settings
    try:
        certificate = shown_certificate(tls.getpeercert(binary_form=True) or b"")
    except InvalidRequest as error:
        _found(seen, where, error)
    else:
        seen.settings["certificate"] = f"{certificate.subject}, for {', '.join(certificate.hosts) or '-'}"
        seen.settings["issued by"] = certificate.issuer
        seen.settings["valid until"] = _time(certificate.ends)
        _warn_of_end(seen, "its certificate", certificate.ends, "the node takes it into use without a restart")
    if not settings.certificate:
        return
    try:
        own = first_of_chain(Path(settings.certificate).read_bytes())
    except (InvalidRequest, OSError):
        return  # it was good enough for the login, or was replaced meanwhile
    seen.settings["client certificate"] = f"{own.subject}, valid until {_time(own.ends)}"
    _warn_of_end(seen, f"the client's certificate {settings.certificate}", own.ends, "clients read it when they start")


def _warn_of_end(seen: Examination, whose: str, end: datetime, then: str) -> None:
    if end < datetime.now(UTC) + _SOON:
        seen.warn(seen.place, f"{whose} expires at {_time(end)}", f"renew it (`stratalog certs renew`): {then}")


def _time(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def _note_login(connection: ListenerConnection, host: str, seen: Examination) -> None:
    settings = connection.settings
    if settings.protocol.is_sasl:
        seen.settings["login"] = f"{settings.user or 'user of a token'} by {settings.mechanism}"
        seen.settings["mechanisms"] = printable(", ".join(connection.mechanisms))
    else:
        seen.settings["login"] = "by certificate" if settings.certificate else "none asked for"
    if not settings.protocol.is_tls and not is_loopback(host):
        seen.warn(
            connection.where,
            "it speaks plain text: whoever is on the network between reads what is sent, and can change it",
            "use a listener with TLS (docs/secure-a-listener.md)",
        )


def _note_rights(connection: ListenerConnection, topic: str, seen: Examination) -> None:
    known = connection.rights_to_topic(topic)
    if known is not None and not known:
        needed = Right(Operation.READ, ResourceType.TOPIC, topic)
        _found(seen, connection.where, missing_right(connection.settings, needed, connection.where))
        return
    may = (
        "there is no such topic, or the broker does not say"
        if known is None
        else ", ".join(sorted(one.name for one in known))
    )
    seen.settings[f"may, of topic {printable(topic)}"] = may


def _check_advertised(answer: Any, asked: tuple[str, int], settings: ClientSettings, seen: Examination) -> None:
    """Clients continue at the addresses that Metadata names."""
    seen.settings["cluster"] = printable(answer.cluster_id or "?")
    seen.settings["nodes"] = counted(len(answer.brokers), "node")
    for broker in answer.brokers:
        if (broker.host, broker.port) == asked:
            continue
        place = written(broker.host, broker.port)
        seen.step(place)
        try:
            check_broker(broker.host, broker.port, settings)
        except StratalogError as error:
            _found(seen, place, error, f"clients are sent here for node {broker.node_id} (advertised.listeners): ")
