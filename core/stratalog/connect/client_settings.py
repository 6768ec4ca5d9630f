"""How a command connects to Kafka listeners and logs in: the settings of a client, in the form of Kafka's own tools.

They are in a file (`--client-config FILE`, STRATALOG_CLIENT_CONFIG, or that of the context): Java properties, as
`kafka-topics.sh --command-config` takes them, where librdkafka's names are understood, too. So no password is on a
command line. It may come from STRATALOG_PASSWORD in place of the file, and the secret of a client of OAuth from
STRATALOG_CLIENT_SECRET. No message of Stratalog shows them.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from stratalog.connect.token_endpoint import (
    ID_SETTING,
    SECRET_SETTING,
    TOKEN,
    URL_SETTING,
    FetchedTokens,
    TokenEndpoint,
    checked_url,
    end_of,
)
from stratalog.model.counting import did_you_mean
from stratalog.model.errors import InvalidRequest, NotFound, Unavailable
from stratalog.model.listeners import SecurityProtocol

VARIABLE: Final = "STRATALOG_CLIENT_CONFIG"
PASSWORD_VARIABLE: Final = "STRATALOG_PASSWORD"
TOKEN_VARIABLE: Final = "STRATALOG_BEARER_TOKEN"
SECRET_VARIABLE: Final = "STRATALOG_CLIENT_SECRET"
BEARER: Final = "OAUTHBEARER"
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", BEARER)
"""Those by which commands log in."""
_MOST_BYTES: Final = 1 << 20
_OPAQUE_TOKEN_S: Final = 60.0

_ALIKE: Final = {
    "sasl.mechanisms": "sasl.mechanism",
    "ssl.ca.location": "ssl.truststore.location",
    "sasl.oauthbearer.client.id": ID_SETTING,
    "sasl.oauthbearer.client.secret": SECRET_SETTING,
}
"""librdkafka's names of what Kafka calls otherwise."""
_READ: Final = frozenset(
    {
        "security.protocol",
        "sasl.mechanism",
        "sasl.jaas.config",
        "sasl.username",
        "sasl.password",
        ID_SETTING,
        SECRET_SETTING,
        "sasl.oauthbearer.scope",
        URL_SETTING,
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
        "sasl.login.connect.timeout.ms",
        "sasl.login.read.timeout.ms",
        "sasl.login.retry.backoff.ms",
        "sasl.login.retry.backoff.max.ms",
        "sasl.oauthbearer.jwt.retriever.class",
        "sasl.oauthbearer.method",
        "ssl.protocol",
        "ssl.enabled.protocols",
        "ssl.provider",
        "ssl.cipher.suites",
        "ssl.secure.random.implementation",
    }
)
"""Passed over: those of TLS only narrow what is spoken, and the others say how a client gets a token, and how fast."""
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
    tokens: FetchedTokens | None = field(default=None, compare=False, repr=False)
    """In place of both: those that an identity provider gives."""

    @property
    def named(self) -> str:
        return f" (settings of {self.source})" if self.source else ""

    def bearer_token(self) -> str:
        """Raises: InvalidRequest, Unavailable; no part of the token is quoted."""
        if self.tokens is not None:
            return self.tokens.current()
        token = self.token
        if not token:
            try:
                with Path(self.token_file).open("rb") as opened:
                    token = opened.read(_MOST_BYTES).decode("ascii").strip()
            except (OSError, UnicodeDecodeError) as error:
                why = getattr(error, "strerror", None) or "it is not ASCII text"
                raise InvalidRequest(f"the token in {self.token_file} cannot be read ({why}){self.named}") from None
        if TOKEN.fullmatch(token) is None:
            raise InvalidRequest(
                f"{self.token_file or TOKEN_VARIABLE} does not hold one token on one line{self.named}: expected what "
                "the identity provider issued, such as a JWT"
            )
        return token

    @property
    def token_from(self) -> str:
        """Where its tokens come from, for messages."""
        return self.token_file or (TOKEN_VARIABLE if self.tokens is None else self.tokens.endpoint.url)

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
        if self.tokens is not None:
            found |= _of_oidc(self.tokens.endpoint)
        elif self.mechanism == BEARER:
            found |= {"sasl.mechanism": BEARER, "oauth_cb": lambda _: _with_end(self.bearer_token())}
        elif self.protocol.is_sasl:
            found |= {"sasl.mechanism": self.mechanism, "sasl.username": self.user, "sasl.password": self.password}
        return found


PLAIN_TEXT: Final = ClientSettings()


def _with_end(token: str) -> tuple[str, float]:
    """With the time (s since 1970) at which it expires, as librdkafka wants to know; soon, where it does not say."""
    end_s = end_of(token)
    return token, time.time() + _OPAQUE_TOKEN_S if end_s is None else end_s


def _of_oidc(endpoint: TokenEndpoint) -> dict[str, object]:
    """librdkafka fetches and renews its tokens itself."""
    texts = {
        "sasl.oauthbearer.client.id": endpoint.client_id,
        "sasl.oauthbearer.client.secret": endpoint.client_secret,
        "sasl.oauthbearer.token.endpoint.url": endpoint.url,
        "sasl.oauthbearer.scope": endpoint.scope,
        "https.ca.location": endpoint.authorities,
    }
    return {
        "sasl.mechanism": BEARER,
        "sasl.oauthbearer.method": "oidc",
        **{key: value for key, value in texts.items() if value},
    }


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
            environment.get(SECRET_VARIABLE, ""),
        )
    except UnicodeDecodeError:
        raise InvalidRequest(f"client settings {file}: they are not text") from None
    except InvalidRequest as error:
        raise InvalidRequest(f"client settings {file}: {error}") from None


def settings_of(
    values: Mapping[str, str], source: str, password: str = "", token: str = "", client_secret: str = ""
) -> ClientSettings:
    """`password`, `token` and `client_secret` go before those of the settings. Raises: InvalidRequest."""
    found = {_ALIKE.get(key, key): value for key, value in values.items()}
    for store in ("truststore", "keystore"):
        kind = found.get(f"ssl.{store}.type", "PEM")
        if kind.upper() != "PEM":
            raise InvalidRequest(
                f"ssl.{store}.type={kind[:20]}: only PEM is read here (`keytool -exportcert -rfc` and "
                "`openssl pkcs12 -in FILE -nodes` write it)"
            )
    for key in found:
        if key.startswith(_OF_SECURITY) and key not in _READ and key not in _WITHOUT_EFFECT:
            meant = did_you_mean(key, sorted(_READ))
            raise InvalidRequest(f"{key} is not understood here{meant}; known are {', '.join(sorted(_READ))}")
    protocol = _protocol_of(found)
    certificate = found.get("ssl.keystore.location") or found.get("ssl.certificate.location", "")
    key = found.get("ssl.keystore.location") or found.get("ssl.key.location", "")
    if bool(certificate) != bool(key):
        raise InvalidRequest("a client's certificate needs its key: set ssl.certificate.location and ssl.key.location")
    mechanism = user = secret = token_file = ""
    tokens = None
    if protocol.is_sasl and found.get("sasl.mechanism") == BEARER:
        mechanism, password = BEARER, ""
        if not token:
            token_file = _token_file_of(found)
            tokens = None if token_file else FetchedTokens(_endpoint_of(found, client_secret))
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
        tokens=tokens,
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
    """Empty where the address is that of an identity provider."""
    url = found.get(URL_SETTING, "")
    if not url:
        raise InvalidRequest(
            f"they name no token: set {URL_SETTING} to that of an identity provider (https://…) or to a file "
            f"(file:///PATH), or set {TOKEN_VARIABLE}"
        )
    parts = urlsplit(url)
    if parts.scheme != "file":
        return ""
    if parts.netloc not in ("", "localhost") or not parts.path:
        raise InvalidRequest(f"{URL_SETTING}: expected file:///PATH, a file of this machine")
    return unquote(parts.path)


def _endpoint_of(found: Mapping[str, str], client_secret: str) -> TokenEndpoint:
    """The options of `sasl.jaas.config` come last, as in Kafka."""
    options = _jaas_options(found.get("sasl.jaas.config", ""))
    url = checked_url(found[URL_SETTING])
    client_id = found.get(ID_SETTING) or options.get("clientId", "")
    secret = client_secret or found.get(SECRET_SETTING) or options.get("clientSecret", "")
    if not client_id:
        raise InvalidRequest(f"they name no client for {URL_SETTING}: set {ID_SETTING}")
    if not secret:
        raise InvalidRequest(
            f"they hold no secret of the client {client_id[:80]}: set {SECRET_SETTING}, or {SECRET_VARIABLE}"
        )
    scope = found.get("sasl.oauthbearer.scope") or options.get("scope", "")
    return TokenEndpoint(url, client_id, secret, scope.strip(), found.get("https.ca.location", ""))


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
