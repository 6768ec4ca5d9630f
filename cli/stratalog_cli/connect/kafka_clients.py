"""Kafka clients for commands that read and write records and groups: librdkafka, as in any application.

It is an extra (`clients` in pyproject.toml), imported when such a command runs. Before it makes a client, this module
connects and logs in by itself (`stratalog.connect.brokers`). A write goes only to an address that the user named
(`stratalog_cli.connect.target_address`).
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from stratalog.connect.brokers import parse, require_broker
from stratalog.connect.client_settings import ClientSettings
from stratalog.connect.listener import ListenerConnection
from stratalog.connect.missing_right import Right, missing_right, refused_right
from stratalog.model.counting import did_you_mean
from stratalog.model.errors import InvalidRequest, NotFound, StratalogError, Unavailable
from stratalog.model.rights import Operation, ResourceType
from stratalog.telemetry.printable import printable
from stratalog_cli.connect.kafka_question import ask
from stratalog_cli.connect.target_address import bootstrap_target, refuse_guess
from stratalog_cli.terminal.say import say

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

T = TypeVar("T")
WAIT_S: Final = 30.0
"""How long one answer is waited for."""
_CLIENT_ID: Final = "stratalog"
_PASSING: Final = frozenset(
    {
        "NOT_LEADER_FOR_PARTITION",
        "REQUEST_TIMED_OUT",
        "NETWORK_EXCEPTION",
        "COORDINATOR_LOAD_IN_PROGRESS",
        "COORDINATOR_NOT_AVAILABLE",
        "NOT_COORDINATOR",
        "NOT_ENOUGH_REPLICAS",
        "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
        "KAFKA_STORAGE_ERROR",
        "REBALANCE_IN_PROGRESS",
    }
)
"""What a broker answers that another try may change. librdkafka's own `retriable()` is for transactions alone."""

BootstrapOption = Annotated[
    str | None,
    typer.Option(
        "--bootstrap",
        "-b",
        envvar="STRATALOG_BOOTSTRAP",
        metavar="HOST:PORT[,HOST:PORT...]",
        help="Kafka address of a node, or of several. Default: the context's.",
    ),
]


class KafkaPlace:
    """A cluster as Kafka clients reach it."""

    def __init__(self, named: str | None, *, is_write: bool, settings: ClientSettings | None = None) -> None:
        """Prints where a write goes, and which address a read used by default. `settings`: how to log in, where those
        of the command are not meant.

        Raises: InvalidRequest for an invalid address, for a write to a default address, or where the client is refused;
        Unavailable if no broker answers; Conflict if the context belongs to another cluster."""
        asked = bootstrap_target(named)
        addresses = [parse(one) for one in asked.addresses.split(",") if one.strip()]
        if not addresses:
            raise InvalidRequest("no bootstrap address: expected HOST:PORT, or several separated by commas")
        self.settings = asked.client_settings if settings is None else settings
        self._broker = require_broker(addresses, self.settings)
        self.bootstrap = asked.addresses
        self.admin = imported("confluent_kafka.admin").AdminClient(self.config())
        self.topics = self._read_topics()
        cluster = f"cluster {printable(self.cluster_id)}"
        if asked.is_guessed:
            if is_write:
                raise refuse_guess(cluster, "bootstrap", asked.addresses)
            say(
                f"asked {cluster} at {asked.addresses}: nothing names another (`stratalog context add`)", to_stderr=True
            )
        asked.require_cluster(self.cluster_id, asked.addresses)
        if is_write:
            say(f"to {cluster} at {printable(asked.addresses)}{asked.by_context}", to_stderr=True)

    def _read_topics(self) -> dict[str, Any]:
        try:
            listed = self.admin.list_topics(timeout=WAIT_S)
        except kafka_exception() as error:
            raise as_ours(error.args[0]) from None
        self.cluster_id: str = listed.cluster_id or "?"
        self.brokers: dict[int, Any] = dict(listed.brokers)
        return dict(listed.topics)

    def config(self, **further: object) -> dict[str, object]:
        return {
            "bootstrap.servers": self.bootstrap,
            "client.id": _CLIENT_ID,
            "error_cb": lambda error: None,  # what matters comes back from the call
            "log_level": 0,
            **self.settings.of_librdkafka(),
            **{key.replace("_", "."): value for key, value in further.items()},
        }

    def ask(self, host: str, port: int, api_key: int, version: int, *, is_write: bool = False, **fields: object) -> Any:
        """One question to one of its brokers. Raises: as `kafka_question.ask`."""
        return ask(host, port, api_key, version, settings=self.settings, is_write=is_write, **fields)

    def refusal(self, *needed: Right, outcome: str = "") -> Callable[[KafkaError], StratalogError]:
        """How an error is raised of a request that needs these rights: a refusal says which one is missing."""

        def worded(error: KafkaError) -> StratalogError:
            refused = refused_right(error.code(), needed)
            return as_ours(error) if refused is None else missing_right(self.settings, refused, self.bootstrap, outcome)

        return worded

    def require_right(self, operation: Operation, topic: str) -> None:
        """That the client may do this with the topic, as far as the broker says so; asking never creates a topic.
        Raises: Forbidden."""
        with ListenerConnection(*self._broker, self.settings) as connection:
            known = connection.rights_to_topic(topic)
        if known is not None and operation not in known:
            right = Right(operation, ResourceType.TOPIC, topic)
            raise missing_right(self.settings, right, self.bootstrap, ", and nothing was done")

    def shards_of(self, topic: str, operation: Operation = Operation.DESCRIBE) -> list[int]:
        """The shards of a topic; asking never creates one. `operation`: what the command does with it.

        Raises: NotFound; Forbidden where the client may not even know whether it exists."""
        found = self.topics.get(topic)
        if found is None or not found.partitions:
            self.require_right(operation, topic)
            if "@" in topic:
                raise NotFound(f"there is no topic {topic!r}; `stratalog mounts list` shows what is mounted")
            raise NotFound(
                f"there is no topic {topic!r}{did_you_mean(topic, self.topics)}; `stratalog topics list` shows all, "
                f"`stratalog topics create {topic}` creates one"
            )
        return sorted(found.partitions)


def imported(module: str) -> Any:
    """Raises: InvalidRequest where the extra is missing."""
    import importlib

    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != "confluent_kafka":
            raise
        raise InvalidRequest(
            "this command needs a Kafka client, which is not installed here: pip install confluent-kafka, into the "
            "environment in which stratalog is installed (docs/install.md)"
        ) from None


def clients() -> Any:
    """The module with Producer, Consumer, TopicPartition."""
    return imported("confluent_kafka")


def kafka_exception() -> Any:
    return clients().KafkaException


def as_ours(error: KafkaError) -> StratalogError:
    """What the caller can do about it decides the kind."""
    text = f"{error.str()} ({error.name()})"
    if error.name() == "LEADER_NOT_AVAILABLE" or (error.name() == "_NOENT" and "leader" in error.str()):
        return Unavailable(
            f"{text}: no node leads a shard of it now; try again, and if it lasts, `stratalog cluster status` or GET "
            "/v1/troubles of the meta service says which node it waits for"
        )
    if error.code() < 0 or error.name() in _PASSING:
        return Unavailable(text)
    return InvalidRequest(text)


def result_of(answer: Future[T], worded: Callable[[KafkaError], StratalogError] = as_ours) -> T:
    """Raises: what it says, as ours (`KafkaPlace.refusal`); Unavailable when none comes."""
    try:
        return answer.result(WAIT_S)
    except kafka_exception() as error:
        raise worded(error.args[0]) from None
    except TimeoutError:
        raise Unavailable(f"no answer within {WAIT_S:g} s; try again") from None
