"""What a shell offers at Tab: topics and groups of the cluster that the command would ask, and keys of settings.

A shell waits for the answer, so a cluster has little time, and whatever goes wrong offers nothing and says nothing.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from stratalog_cli.connect.target_address import Target

_TIMEOUT_S = 1.5


def topics(ctx: typer.Context) -> list[str]:
    return _silently(lambda: _topics(ctx))


def groups(ctx: typer.Context) -> list[str]:
    return _silently(lambda: _groups(ctx))


def assignments(ctx: typer.Context) -> list[str]:
    """`KEY=` for `--set`: of topics for their commands, of processes for servers."""
    return _silently(lambda: [f"{key}=" for key in _keys(is_topic="topics" in ctx.command_path.split())])


def topic_keys() -> list[str]:
    """For `--unset`."""
    return _silently(lambda: _keys(is_topic=True))


TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.", autocompletion=topics)]
MaybeTopicArgument = Annotated[
    str | None,
    typer.Argument(metavar="TOPIC", help="Only this topic. Default: all topics.", autocompletion=topics),
]


def _silently(find: Callable[[], list[str]]) -> list[str]:
    with contextlib.redirect_stderr(io.StringIO()):
        try:
            return find()
        except Exception:  # a broken cluster, a wrong context: the command itself says what is wrong
            return []


def _named(ctx: typer.Context, option: str) -> str | None:
    value = ctx.params.get(option) or os.environ.get(f"STRATALOG_{option.upper()}")
    return str(value) if value else None


def _topics(ctx: typer.Context) -> list[str]:
    from stratalog_cli.connect.several_nodes import Nodes
    from stratalog_cli.connect.target_address import bootstrap_target

    try:
        return sorted(one.name for one in Nodes(_named(ctx, "admin"), timeout_s=_TIMEOUT_S).first(lambda n: n.topics()))
    except Exception:
        asked = bootstrap_target(_named(ctx, "bootstrap"))
        listed = _admin(asked).list_topics(timeout=_TIMEOUT_S)
        return sorted(listed.topics)


def _groups(ctx: typer.Context) -> list[str]:
    from stratalog_cli.connect.target_address import bootstrap_target

    asked = bootstrap_target(_named(ctx, "bootstrap"))
    admin = _admin(asked)
    admin.list_topics(timeout=_TIMEOUT_S)  # it asks the nodes that it knows: without this, none
    listed = admin.list_consumer_groups(request_timeout=_TIMEOUT_S).result(_TIMEOUT_S)
    return sorted(one.group_id for one in listed.valid)


def _admin(asked: Target):  # type: ignore[no-untyped-def]  # of a package that has no types
    from stratalog_cli.connect.kafka_clients import imported

    own = {"bootstrap.servers": asked.addresses, "log_level": 0, "error_cb": lambda _: None}
    settings = own | asked.client_settings.of_librdkafka()
    return imported("confluent_kafka.admin").AdminClient(settings)


def _keys(*, is_topic: bool) -> list[str]:
    from stratalog.settings.process import ProcessSettings
    from stratalog.settings.topic import TopicSettings
    from stratalog.settings.wrong_values import fields_by_key

    return sorted(fields_by_key(TopicSettings if is_topic else ProcessSettings))
