"""Kafka clients of other languages: small programs in tests/clients/programs, each built once into .cache/programs.

A program is given `key=value` arguments and prints lines. `action=copy` writes `count` values, one after another, reads
them back in a group, and prints `read VALUE` for each. `action=write` writes for some `seconds` and prints `wrote N`.
None repeats a request that failed: it prints `error` with all that its library says, and ends with code 1.

`missing` says which tool is not there. Sources and packages are fixed by lock files with hashes.
"""

from __future__ import annotations

import shutil
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from support.java_client import JavaTools

PROGRAMS = Path("tests/clients/programs")
_PATIENCE_S = 400
_SASL = "org.apache.kafka.common.security"


@dataclass(frozen=True, slots=True)
class Login:
    """Where a client connects, and what it proves who it is with: paths are of PEM files, and of one with a token."""

    bootstrap: str
    ca: str
    mechanism: str = ""
    """Of SASL; empty: by its certificate."""
    user: str = ""
    password: str = ""
    token: str = ""
    certificate: str = ""
    key: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    code: int
    lines: tuple[str, ...]

    @property
    def read(self) -> list[bytes]:
        return [line.removeprefix("read ").encode() for line in self.lines if line.startswith("read ")]

    @property
    def errors(self) -> str:
        return "\n".join(line for line in self.lines if line.startswith("error "))


@dataclass(slots=True)
class ClientProgram(ABC):
    repository: Path
    command: list[str] = field(default_factory=list)

    @classmethod
    def find(cls, repository: Path) -> ClientProgram:
        """Skips the test where its language is not here."""
        program = cls(repository)
        trouble = next((f"there is no {tool} here" for tool in cls.needs() if not shutil.which(tool)), None)
        if trouble is not None:
            pytest.skip(trouble)
        place = repository / ".cache" / "programs"
        place.mkdir(parents=True, exist_ok=True)
        program.build(place)
        return program

    @staticmethod
    @abstractmethod
    def needs() -> Sequence[str]: ...

    @abstractmethod
    def build(self, place: Path) -> None:
        """Into `place`; sets `command`."""

    def copy(self, login: Login, topic: str, group: str, count: int) -> Outcome:
        return self._run(login, f"topic={topic}", f"group={group}", f"count={count}", "action=copy")

    def write(self, login: Login, topic: str, seconds: int) -> Outcome:
        return self._run(login, f"topic={topic}", f"seconds={seconds}", "action=write")

    def arguments(self, login: Login) -> list[str]:
        return [f"{name}={getattr(login, name)}" for name in Login.__slots__ if getattr(login, name)]

    def _run(self, login: Login, *more: str) -> Outcome:
        done = subprocess.run(
            [*self.command, *self.arguments(login), *more],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_PATIENCE_S,
            check=False,
        )
        return Outcome(done.returncode, tuple(done.stdout.splitlines()))

    def _build(self, *command: str, folder: Path) -> None:
        subprocess.run(command, cwd=folder, check=True, timeout=600)


class FranzGo(ClientProgram):
    @staticmethod
    def needs() -> Sequence[str]:
        return ("go",)

    def build(self, place: Path) -> None:
        binary = place / "franz-go"
        self._build("go", "build", "-trimpath", "-o", str(binary), ".", folder=self.repository / PROGRAMS / "franz-go")
        self.command = [str(binary)]


class KafkaJs(ClientProgram):
    @staticmethod
    def needs() -> Sequence[str]:
        return "node", "npm"

    def build(self, place: Path) -> None:
        folder = place / "kafkajs"
        shutil.copytree(self.repository / PROGRAMS / "kafkajs", folder, dirs_exist_ok=True)
        if not (folder / "node_modules" / "kafkajs").exists():
            self._build("npm", "ci", "--no-audit", "--no-fund", folder=folder)
        self.command = ["node", str(folder / "client.js")]


class Java(ClientProgram):
    _place: Path

    @staticmethod
    def needs() -> Sequence[str]:
        return "java", "javac"

    def build(self, place: Path) -> None:
        self._place = place / "java"
        class_path = JavaTools.find(self.repository).class_path
        source = self.repository / PROGRAMS / "java" / "Client.java"
        self._build("javac", "-cp", class_path, "-d", str(self._place), str(source), folder=place)
        self.command = [
            *("java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
            *("-cp", f"{self._place}:{class_path}"),
        ]

    def arguments(self, login: Login) -> list[str]:
        file = self._place / "client.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in java_settings(login, self._place).items()))
        allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={Path(login.token or '/').as_uri()}"
        return [allowed, "Client", f"settings={file}"]


def java_settings(login: Login, folder: Path) -> dict[str, str]:
    """As docs/secure-a-listener.md has them. Java takes a key in PKCS#8 alone, and in one file with the certificate."""
    found = {
        "bootstrap.servers": login.bootstrap,
        "security.protocol": "SASL_SSL" if login.mechanism else "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": login.ca,
    }
    if login.certificate:
        keystore = folder / "client.pem"
        key = load_pem_private_key(Path(login.key).read_bytes(), None)
        pkcs8 = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        keystore.write_bytes(pkcs8 + Path(login.certificate).read_bytes())
        found |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(keystore)}
    if not login.mechanism:
        return found
    if login.mechanism == "OAUTHBEARER":
        return found | {
            "sasl.mechanism": login.mechanism,
            "sasl.login.callback.handler.class": f"{_SASL}.oauthbearer.OAuthBearerLoginCallbackHandler",
            "sasl.oauthbearer.token.endpoint.url": Path(login.token).as_uri(),
            "sasl.jaas.config": f"{_SASL}.oauthbearer.OAuthBearerLoginModule required;",
        }
    module = "plain.PlainLoginModule" if login.mechanism == "PLAIN" else "scram.ScramLoginModule"
    user = f'username="{login.user}" password="{login.password}"'
    return found | {"sasl.mechanism": login.mechanism, "sasl.jaas.config": f"{_SASL}.{module} required {user};"}


PROGRAM_CLIENTS: dict[str, type[ClientProgram]] = {"java": Java, "franz-go": FranzGo, "kafkajs": KafkaJs}


def with_a_wrong_proof(login: Login, foreign: Login) -> Login:
    """The same, but for its password, token or certificate."""
    if login.token:
        return replace(login, token=foreign.token)
    if login.certificate:
        return replace(login, certificate=foreign.certificate, key=foreign.key)
    return replace(login, password="wrong")
