"""The demo's user of a secure cluster, with rights to write and read flights, and no other rights."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient as KafkaAdmin
from demo_stage import DemoFailed, Security, Stage

USER: Final = "demo"
_STRATALOG: Final = str(Path(sys.executable).with_name("stratalog"))
_PASSWORD_FILE: Final = "demo.password"
_GROUPS: Final = ("demo", "flights", "afterwards", "looks-again")
"""Names, or how the names begin, of the groups that read."""
_ANSWERED_S: Final = 60


def admit_user(stage: Stage, security: Security) -> None:
    """Creates the user and the rules that let it write and read topics whose names begin with `flights`. Raises:
    DemoFailed."""
    password = security.folder / _PASSWORD_FILE
    _run(stage, security, "users", "create", USER, "--password-out", str(password))
    groups = [word for group in _GROUPS for word in ("--group", group)]
    rules = ("--producer", "--consumer", "--topic", "flights", *groups, "--resource-pattern-type", "prefixed")
    _run(stage, security, "acls", "add", "--allow-principal", f"User:{USER}", *rules)
    of_admin = dict(line.split("=", 1) for line in security.admin_path.read_text().splitlines())
    own = of_admin | {
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": USER,
        "sasl.password": password.read_text().strip(),
    }
    with os.fdopen(os.open(security.user_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write("".join(f"{key}={value}\n" for key, value in own.items()))


def _run(stage: Stage, security: Security, *words: str) -> None:
    command = [_STRATALOG, "--client-config", str(security.admin_path), *words, "--bootstrap", stage.kafka]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_ANSWERED_S)
    if done.returncode != 0:
        raise DemoFailed(f"`stratalog {' '.join(words)}` failed: {done.stdout}{done.stderr}")


def check_refusals(stage: Stage, topic: str) -> str:
    """That the user may not delete what it writes, and that no client comes in without a login; returns this in words.
    Raises: DemoFailed."""
    user = KafkaAdmin(stage.client_settings)
    (answer,) = user.delete_topics([topic], request_timeout=_ANSWERED_S).values()
    try:
        answer.result(_ANSWERED_S)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_AUTHORIZATION_FAILED:
            raise DemoFailed(f"User:{USER} was refused to delete {topic} for another reason: {error}") from None
    else:
        raise DemoFailed(f"User:{USER} could delete {topic}, and no rule lets it")
    refused = [{"security.protocol": "PLAINTEXT"}, {"sasl.password": "a guess"}]
    for changed in refused:
        stranger = KafkaAdmin(stage.client_settings | changed | {"log_level": 0})
        try:
            stranger.list_topics(timeout=3)
        except KafkaException:
            continue
        raise DemoFailed(f"a client with {next(iter(changed))} changed was let in")
    return (
        f"User:{USER} wrote and read over TLS after a SCRAM login; it may not delete {topic}, and clients without TLS, "
        "or with another password, are not let in."
    )
