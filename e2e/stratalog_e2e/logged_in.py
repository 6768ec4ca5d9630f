"""Clients that log in by SCRAM over TLS, in the pod of `traffic_pod.py`: one producer that runs, and single attempts.

Users and what to trust are read from the Secrets that are mounted below `FOLDER`, each in a folder of its name. The
producer takes a password that changed for its next connections, as a client that reads a mounted file does.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import confluent_kafka

FOLDER = Path("/etc/clients")
TRUSTED = "main-ca"
_STEP_S = 0.05
_TRIED_S = 30.0


def password_of(user: str) -> str:
    return (FOLDER / user / "password").read_text()


def settings_of(bootstrap: str, user: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": user,
        "sasl.password": password_of(user),
        "ssl.ca.location": str(FOLDER / TRUSTED / "ca.crt"),
    }


class Producing:
    """Writes to a topic until `end`. `told` says what became of it so far."""

    def __init__(self, bootstrap: str, user: str, topic: str) -> None:
        settings = settings_of(bootstrap, user)
        self._producer = confluent_kafka.Producer({**settings, "acks": "all", "enable.idempotence": True})
        self._user, self._topic, self._password = user, topic, settings["sasl.password"]
        self._acknowledged, self._failed = 0, list[str]()
        self._is_ending = threading.Event()
        self._running = threading.Thread(target=self._run, daemon=True)
        self._running.start()

    def told(self) -> dict[str, Any]:
        return {"acknowledged": self._acknowledged, "failed": self._failed[:5]}

    def end(self) -> dict[str, Any]:
        self._is_ending.set()
        self._running.join(_TRIED_S)
        left = self._producer.flush(_TRIED_S)
        return {**self.told(), "left": left}

    def _run(self) -> None:
        number = 0
        while not self._is_ending.is_set():
            self._producer.produce(self._topic, f"record {number}".encode(), on_delivery=self._note)
            number += 1
            self._producer.poll(0)
            if (password := password_of(self._user)) != self._password:
                self._producer.set_sasl_credentials(self._user, password)
                self._password = password
            time.sleep(_STEP_S)

    def _note(self, error: object, _: object) -> None:
        if error is None:
            self._acknowledged += 1
        else:
            self._failed.append(str(error))


def try_to_write(bootstrap: str, user: str, topic: str) -> str:
    """The name of the error; empty: it was acknowledged."""
    found: list[str] = []
    producer = confluent_kafka.Producer({**settings_of(bootstrap, user), "message.timeout.ms": int(_TRIED_S * 1000)})
    producer.produce(topic, b"x", on_delivery=lambda error, _: found.append("" if error is None else error.name()))
    producer.flush(_TRIED_S + 5)
    return found[0] if found else "no answer"


def try_to_read(bootstrap: str, user: str, topic: str, group: str) -> str:
    """The name of the error; empty: a record came."""
    settings = {**settings_of(bootstrap, user), "group.id": group, "auto.offset.reset": "earliest"}
    consumer = confluent_kafka.Consumer(settings)
    deadline = time.monotonic() + _TRIED_S
    try:
        consumer.subscribe([topic])
        while time.monotonic() < deadline:
            message = consumer.poll(1.0)
            if message is not None:
                error = message.error()
                return "" if error is None else str(error.name())
        return "no answer"
    finally:
        consumer.close()
