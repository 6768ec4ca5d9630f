"""How tasks log in to the Kafka that they send to.

A `KafkaLogin` holds names of files and settings without secrets, so it may be an option of a DataFrame, in a plan and
in a pickled piece of work. Each process reads the files, and the secrets of its environment, itself: they must be on
every machine with executors. The settings are read by the same code as those of commands.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from stratalog.connect.brokers import check_broker, parse
from stratalog.connect.client_settings import PASSWORD_VARIABLE, ClientSettings, read_client_settings
from stratalog.connect.missing_right import Right, missing_right, refused_right
from stratalog.model.errors import Forbidden, InvalidRequest, Unavailable, WrongServer
from stratalog.model.listeners import SecurityProtocol
from stratalog.model.rights import Operation, ResourceType

_SECRET: Final = re.compile(r"password|passphrase|secret|jaas|key\.pem|keystore\.key|oauthbearer\.config")
_OF_LOGIN: Final = ("security.", "sasl.", "ssl.", "enable.ssl.", "enable.sasl.")


@dataclass(frozen=True, slots=True)
class KafkaLogin:
    client_config: str = ""
    """File with the settings of a Kafka client, as commands take it; empty: none."""
    settings: tuple[tuple[str, str], ...] = ()
    """Further ones, of librdkafka."""
    files: tuple[tuple[str, str], ...] = ()
    """Of librdkafka's settings, those whose value is in a file of its own."""

    def __post_init__(self) -> None:
        """Raises: InvalidRequest for a secret, and for a login beside that of the file."""
        for key, _ in self.settings:
            if is_secret(key):
                raise InvalidRequest(
                    f"{key} is a secret, and others can see it here: name a file with the client's settings, whose "
                    f"password may also come from {PASSWORD_VARIABLE}"
                )
        if self.client_config:
            for key, _ in (*self.settings, *self.files):
                if key.startswith(_OF_LOGIN):
                    raise InvalidRequest(
                        f"{key} is given beside the client settings {self.client_config}: set it in that file alone"
                    )

    def of_librdkafka(self) -> dict[str, object]:
        """Raises: NotFound, Unavailable, InvalidRequest naming the file; no secret is quoted."""
        own = {} if not self.client_config else self._file().of_librdkafka()
        return {**own, **dict(self.settings), **{key: read_value(key, path) for key, path in self.files}}

    def check(self, servers: str) -> None:
        """That the servers take the client: librdkafka retries a refused login forever. Servers that do not answer are
        left to it, for they may come back.

        Raises: WrongServer; InvalidRequest, also for an address."""
        if not self.client_config and any(key.startswith(_OF_LOGIN) for key, _ in (*self.settings, *self.files)):
            return  # perhaps by a mechanism that only librdkafka knows
        client = self.client
        for host, port in [parse(one) for one in servers.split(",") if one.strip()]:
            try:
                check_broker(host, port, client)
            except WrongServer:
                raise
            except Unavailable:
                continue
            return

    def refusal(self, code: int, topic: str, servers: str, outcome: str = "") -> Forbidden | None:
        """What to say where the servers refuse a producer for want of a right; None for a code that does not."""
        writing = Right(Operation.WRITE, ResourceType.TOPIC, topic)
        # A broker says that IDEMPOTENT_WRITE of the cluster is missing where a producer has WRITE of no topic.
        getting_an_id = Right(Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER)
        if refused_right(code, (writing, getting_an_id)) is None:
            return None
        return missing_right(self.client, writing, servers, outcome)

    @property
    def client(self) -> ClientSettings:
        """As far as it is known here. Raises: NotFound, Unavailable, InvalidRequest."""
        if self.client_config:
            return self._file()
        given = dict(self.settings)
        protocol = given.get("security.protocol", "PLAINTEXT").upper()
        return ClientSettings(
            SecurityProtocol(protocol) if protocol in SecurityProtocol.__members__ else SecurityProtocol.PLAINTEXT,
            given.get("sasl.mechanism", given.get("sasl.mechanisms", "")),
            given.get("sasl.username", ""),
            certificate=given.get("ssl.certificate.location", given.get("ssl.keystore.location", "")),
        )

    def _file(self) -> ClientSettings:
        return read_client_settings(Path(self.client_config), os.environ)


NO_LOGIN: Final = KafkaLogin()


def login_with(client_config: str, settings: Mapping[str, str], files: Iterable[tuple[str, str]] = ()) -> KafkaLogin:
    """Raises: InvalidRequest."""
    return KafkaLogin(client_config, tuple(sorted(settings.items())), tuple(files))


def is_secret(key: str) -> bool:
    """Whether a setting of librdkafka, or of Kafka's clients, may hold one."""
    return _SECRET.search(key.lower()) is not None


def read_value(key: str, path: str) -> str:
    """Raises: InvalidRequest."""
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        raise InvalidRequest(f"the file of {key}, {path}, cannot be read ({why})") from None
