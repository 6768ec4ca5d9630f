"""How a command connects to Kafka listeners and logs in: the settings of a client, in the form of Kafka's own tools.

They are in a file (`--client-config FILE`, STRATALOG_CLIENT_CONFIG, or that of the context): Java properties, as
`kafka-topics.sh --command-config` takes them, where librdkafka's names are understood, too. So no password is on a
command line. It may come from STRATALOG_PASSWORD in place of the file. No message of Stratalog shows it.
"""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from stratalog.model.errors import InvalidRequest, NotFound, Unavailable
from stratalog.model.listeners import SecurityProtocol

VARIABLE: Final = "STRATALOG_CLIENT_CONFIG"
PASSWORD_VARIABLE: Final = "STRATALOG_PASSWORD"
TOKEN_VARIABLE: Final = "STRATALOG_BEARER_TOKEN"
BEARER: Final = "OAUTHBEARER"
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", BEARER)
"""Those by which commands log in."""
_MOST_BYTES: Final = 1 << 20
_TOKEN: Final = r"[A-Za-z0-9._~+/-]+=*"
"""RFC 6750, section 2.1"""
_OPAQUE_TOKEN_S: Final = 60.0

_ALIKE: Final = {
    "sasl.mechanisms": "sasl.mechanism",
    "ssl.ca.location": "ssl.truststore.location",
}
"""librdkafka's names of what Kafka calls otherwise."""
_READ: Final = frozenset(
    {
        "security.protocol",
        "sasl.mechanism",
        "sasl.jaas.config",
        "sasl.username",
        "sasl.password",
        "sasl.oauthbearer.token.endpoint.url",
        "ssl.truststore.location",
        "ssl.truststore.type",
        "ssl.keystore.location",
        "ssl.keystore.type",
        "ssl.certificate.location",
        "ssl.key.location",
        "ssl.key.password",
        "ssl.endpoint.identification.algorithm",
    }
)
_WITHOUT_EFFECT: Final = frozenset(
    {
        "sasl.login.callback.handler.class",
        "ssl.protocol",
        "ssl.enabled.protocols",
        "ssl.provider",
        "ssl.cipher.suites",
        "ssl.secure.random.implementation",
    }
)
"""Passed over: those of TLS only narrow what is spoken, and the handler only says how Java gets its token."""
_OF_SECURITY: Final = ("security.", "sasl.", "ssl.", "enable.ssl.", "enable.sasl.")
_JAAS: Final = re.compile(r"\s*[\w.$]+\s+(?:required|requisite|sufficient|optional)\b(.*?);\s*", re.DOTALL)
_JAAS_OPTION: Final = re.compile(r"""\s*([\w.]+)\s*=\s*("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^\s"';]+)""", re.DOTALL)
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """The default is plain text and no login."""

    protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT
    mechanism: str = ""
    user: str = ""
    password: str = field(default="", repr=False)
    authorities: str = ""
    """PEM file of the authorities that are trusted; empty: those of the system."""
    certificate: str = ""
    """PEM file of the client's certificate; empty: none."""
    key: str = ""
    """PEM file of its key, which may be the same file."""
    key_password: str = field(default="", repr=False)
    checks_host: bool = True
    source: str = ""
    """The file, for messages."""
    has_password_of_environment: bool = False
    """The password is that of PASSWORD_VARIABLE, whatever the file has."""
    token_file: str = ""
    """Whose content is the token of OAUTHBEARER; read at each login, because tokens are replaced."""
    token: str = field(default="", repr=False)
    """In place of that file."""

    @property
    def named(self) -> str:
        return f" (settings of {self.source})" if self.source else ""

    def bearer_token(self) -> str:
        """Raises: InvalidRequest; no part of the token is quoted."""
        token = self.token
        if not token:
            try:
                with Path(self.token_file).open("rb") as opened:
                    token = opened.read(_MOST_BYTES).decode("ascii").strip()
            except (OSError, UnicodeDecodeError) as error:
                why = getattr(error, "strerror", None) or "it is not ASCII text"
                raise InvalidRequest(f"the token in {self.token_file} cannot be read ({why}){self.named}") from None
        if re.fullmatch(_TOKEN, token) is None:
            raise InvalidRequest(
                f"{self.token_file or TOKEN_VARIABLE} does not hold one token on one line{self.named}: expected what "
                "the identity provider issued, such as a JWT"
            )
        return token

    def of_librdkafka(self) -> dict[str, object]:
        found: dict[str, object] = {} if self.protocol is SecurityProtocol.PLAINTEXT else _protocol(self)
        if self.protocol.is_tls:
            texts = {
                "ssl.ca.location": self.authorities,
                "ssl.certificate.location": self.certificate,
                "ssl.key.location": self.key,
                "ssl.key.password": self.key_password,
            }
            found |= {key: value for key, value in texts.items() if value}
            found["ssl.endpoint.identification.algorithm"] = "https" if self.checks_host else "none"
        if self.mechanism == BEARER:
            found |= {"sasl.mechanism": BEARER, "oauth_cb": lambda _: _with_end(self.bearer_token())}
        elif self.protocol.is_sasl:
            found |= {"sasl.mechanism": self.mechanism, "sasl.username": self.user, "sasl.password": self.password}
        return found


PLAIN_TEXT: Final = ClientSettings()


def _with_end(token: str) -> tuple[str, float]:
    """With the time (s since 1970) at which it expires, as librdkafka wants to know; soon, where it does not say."""
    try:
        body = token.split(".")[1]
        end = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))["exp"]
        return token, float(end)
    except (IndexError, KeyError, TypeError, ValueError):
        return token, time.time() + _OPAQUE_TOKEN_S


def _protocol(settings: ClientSettings) -> dict[str, object]:
    return {"security.protocol": settings.protocol.value}


def read_client_settings(file: Path, environment: Mapping[str, str]) -> ClientSettings:
    """Raises: NotFound, Unavailable, InvalidRequest naming the file and the key; no value of a secret is quoted."""
    try:
        with file.open("rb") as opened:
            text = opened.read(_MOST_BYTES + 1)
    except FileNotFoundError:
        raise NotFound(f"client settings {file} do not exist: check --client-config, or that of the context") from None
    except OSError as error:
        raise Unavailable(f"client settings {file} cannot be read ({error.strerror})") from None
    try:
        if len(text) > _MOST_BYTES:
            raise InvalidRequest("they are too long")
        return settings_of(
            properties_of(text.decode()),
            str(file),
            environment.get(PASSWORD_VARIABLE, ""),
            environment.get(TOKEN_VARIABLE, ""),
        )
    except UnicodeDecodeError:
        raise InvalidRequest(f"client settings {file}: they are not text") from None
    except InvalidRequest as error:
        raise InvalidRequest(f"client settings {file}: {error}") from None


def settings_of(values: Mapping[str, str], source: str, password: str = "", token: str = "") -> ClientSettings:
    """`password` and `token` go before those of the settings. Raises: InvalidRequest."""
    found = {_ALIKE.get(key, key): value for key, value in values.items()}
    for key in found:
        if key.startswith(_OF_SECURITY) and key not in _READ and key not in _WITHOUT_EFFECT:
            raise InvalidRequest(f"{key} is not understood here; known are {', '.join(sorted(_READ))}")
    protocol = _protocol_of(found)
    for store in ("truststore", "keystore"):
        kind = found.get(f"ssl.{store}.type", "PEM")
        if kind.upper() != "PEM":
            raise InvalidRequest(
                f"ssl.{store}.type={kind[:20]}: only PEM is read here (`keytool -exportcert -rfc` and "
                "`openssl pkcs12 -in FILE -nodes` write it)"
            )
    certificate = found.get("ssl.keystore.location") or found.get("ssl.certificate.location", "")
    key = found.get("ssl.keystore.location") or found.get("ssl.key.location", "")
    if bool(certificate) != bool(key):
        raise InvalidRequest("a client's certificate needs its key: set ssl.certificate.location and ssl.key.location")
    mechanism = user = secret = token_file = ""
    if protocol.is_sasl and found.get("sasl.mechanism") == BEARER:
        mechanism, password = BEARER, ""
        token_file = "" if token else _token_file_of(found)
    elif protocol.is_sasl:
        mechanism, user, secret = _login_of(found, password)
        token = ""
    else:
        token = ""
    return ClientSettings(
        protocol,
        mechanism,
        user,
        secret,
        found.get("ssl.truststore.location", ""),
        certificate,
        key,
        found.get("ssl.key.password", ""),
        found.get("ssl.endpoint.identification.algorithm", "https").lower() not in ("", "none"),
        source,
        has_password_of_environment=protocol.is_sasl and bool(password),
        token_file=token_file,
        token=token,
    )


def _protocol_of(found: Mapping[str, str]) -> SecurityProtocol:
    name = found.get("security.protocol", "PLAINTEXT").upper()
    if name not in SecurityProtocol.__members__:
        raise InvalidRequest(f"security.protocol={name[:40]}: expected one of {', '.join(SecurityProtocol)}")
    return SecurityProtocol(name)


def _login_of(found: Mapping[str, str], password: str) -> tuple[str, str, str]:
    mechanism = found.get("sasl.mechanism", "")
    if mechanism not in MECHANISMS:
        said = f"sasl.mechanism={mechanism[:40]}" if mechanism else "sasl.mechanism is missing"
        raise InvalidRequest(f"{said}: commands log in by {', '.join(MECHANISMS)}")
    options = _jaas_options(found.get("sasl.jaas.config", ""))
    user = found.get("sasl.username") or options.get("username", "")
    secret = password or found.get("sasl.password") or options.get("password", "")
    if not user:
        raise InvalidRequest("they name no user: set sasl.jaas.config (or sasl.username)")
    if not secret:
        raise InvalidRequest(
            f"they hold no password of {user[:80]}: set sasl.jaas.config (or sasl.password), or "
            f"{PASSWORD_VARIABLE}, which goes before both"
        )
    return mechanism, user, secret


def _token_file_of(found: Mapping[str, str]) -> str:
    url = found.get("sasl.oauthbearer.token.endpoint.url", "")
    if not url:
        raise InvalidRequest(
            f"they name no token: set sasl.oauthbearer.token.endpoint.url=file:///PATH, or {TOKEN_VARIABLE}"
        )
    parts = urlsplit(url)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost") or not parts.path:
        raise InvalidRequest(
            "sasl.oauthbearer.token.endpoint.url: commands read a token from a file alone, file:///PATH: fetch one "
            f"from the identity provider into a file, or into {TOKEN_VARIABLE}"
        )
    return unquote(parts.path)


def _jaas_options(text: str) -> dict[str, str]:
    if not text:
        return {}
    module = _JAAS.fullmatch(text)
    options = {} if module is None else {one[1]: _unquoted(one[2]) for one in _JAAS_OPTION.finditer(module[1])}
    if module is None or _JAAS_OPTION.sub("", module[1]).strip():
        raise InvalidRequest('sasl.jaas.config: expected `CLASS required username="…" password="…";`')
    return options


def _unquoted(value: str) -> str:
    if value[0] not in "\"'":
        return value
    return re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[1]), value[1:-1], flags=re.DOTALL)


def properties_of(text: str) -> dict[str, str]:
    """Java's properties: comments, lines that continue, escapes. The last of a key counts, as in Java."""
    values: dict[str, str] = {}
    pending = ""
    for line in text.splitlines():
        line = pending + line.lstrip(" \t\f")
        pending = ""
        if not line or line[0] in "#!":
            continue
        if (len(line) - len(line.rstrip("\\"))) % 2:
            pending = line[:-1]
            continue
        found = re.match(r"((?:[^=:\s\\]|\\.)+)\s*[=:]?\s*(.*)", line, re.DOTALL)
        if found is not None:
            values[_unescaped(found[1])] = _unescaped(found[2]).rstrip()
    return values


def _unescaped(text: str) -> str:
    return re.sub(
        r"\\(?:u([0-9A-Fa-f]{4})|(.))",
        lambda found: chr(int(found[1], 16)) if found[1] else _ESCAPES.get(found[2], found[2]),
        text,
        flags=re.DOTALL,
    )
