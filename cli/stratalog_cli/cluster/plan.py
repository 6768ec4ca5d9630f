"""The parts of a cluster on one machine and how each is run, from a person's options and the existing cluster.

Pure: it looks at nothing. A plan is never changed, a new one takes its place. Addresses are given once, when a part
comes into the plan, and stay: etcd's members know each other by theirs, clients know the nodes by theirs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from shlex import quote
from types import MappingProxyType
from typing import Final

from stratalog.model.addresses import LAST_PORT
from stratalog.model.counting import counted
from stratalog.model.errors import Conflict, InvalidRequest, LimitExceeded, NotFound
from stratalog.model.etcd_versions import FIRST_SAFE
from stratalog.settings.load import parse_assignments

HOST: Final = "127.0.0.1"
MAX_NODES: Final = 20
DEFAULT_NODES: Final = 3
_ETCD_MEMBERS: Final = 3
_META_INSTANCES: Final = 3
"""Over etcd; one alone where RocksDB holds the metadata."""
_USUAL_REPLICAS: Final = 3


class Role(StrEnum):
    """In the order in which parts are started; they are ended in the opposite one."""

    ETCD = "etcd"
    META = "meta"
    NODE = "node"


ADDRESSES: Final[Mapping[Role, tuple[str, ...]]] = MappingProxyType(
    {Role.ETCD: ("client", "peer"), Role.META: ("http", "admin"), Role.NODE: ("kafka", "admin")}
)
"""What a part listens on, the main one first."""
SECURE_ADDRESSES: Final[Mapping[Role, tuple[str, ...]]] = MappingProxyType(
    {**ADDRESSES, Role.NODE: ("kafka", "admin", "internal")}
)
"""Of a secure cluster: clients come to `kafka`, other nodes to `internal`."""
CLIENTS: Final = "clients"
"""The name of the listener that clients of a secure cluster come to."""
ADMIN_USER: Final = "admin"
MECHANISMS_SETTING: Final = "sasl.enabled.mechanisms"
BUCKET_VARIABLE: Final = "STRATALOG_BUCKET"


class MetaStoreKind(StrEnum):
    ETCD = "etcd"
    ROCKSDB = "rocksdb"


OWN_SETTINGS: Final = ("node.id", "metrics.listen", "meta.listen", "listeners", "advertised.listeners")
"""Settings that differ from part to part: the plan gives them."""
SECURE_SETTINGS: Final = (
    "auth.token.file",
    "http.security.protocol",
    "http.ssl.client.auth",
    "security.inter.broker.protocol",
    "listener.security.protocol.map",
    "ssl.certificate.folder",
    "ssl.keystore.location",
    "ssl.truststore.location",
)
"""Settings that a secure cluster gives its parts itself, with the files that the start makes."""
SECURITY_FOLDER: Final = "security"
TOKEN_FILE: Final = "token"
ROLES_FILE: Final = "roles"
"""What the parts know of the token: its hash, with the role of a viewer."""
AUTHORITY_FOLDER: Final = "authority"
ETCD_AUTHORITY_FOLDER: Final = "etcd-authority"
"""Of the authority that etcd's members trust. It is not the cluster's, whose nodes and clients must not reach etcd."""
ETCD_CLIENT: Final = "etcd-client"
"""The certificate that etcd's members ask of the meta service."""
PAGE: Final = "page"
"""The certificate of the cluster UI."""
OPERATOR: Final = "operator"
"""The certificate that commands, the start and the UI show to nodes and the meta service. No part reads it."""
CLIENT_FILE: Final = "admin.properties"
MOST_SECURE_NODES: Final = 19
"""A block of 100 ports has room for the internal listeners of that many nodes."""


@dataclass(frozen=True, slots=True)
class Ports:
    """Where the ports of the parts begin: Kafka's, and those of everything else."""

    kafka: int = 9092
    others: int = 9644
    """The first node's admin port, the default address of the other commands."""

    @classmethod
    def from_base(cls, base: int) -> Ports:
        """A block of 100 ports. Raises InvalidRequest."""
        if not 1 <= base <= LAST_PORT - 99:
            raise InvalidRequest(f"--port-base {base}: expected 1 to {LAST_PORT - 99}, for a block of 100 ports")
        return cls(base, base + MAX_NODES)

    @property
    def page(self) -> int:
        """Of the cluster UI."""
        return self.others + 60

    def of(self, role: Role, number: int) -> tuple[int, ...]:
        """The ports of a part, numbers from 1 on, in the order of SECURE_ADDRESSES."""
        at = number - 1
        match role:
            case Role.NODE:
                return self.kafka + at, self.others + at, self.page + 1 + at
            case Role.META:
                return self.others + 20 + at, self.others + 30 + at
            case Role.ETCD:
                return self.others + 40 + at, self.others + 50 + at


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    role: Role
    addresses: Mapping[str, str]
    """HOST:PORT by what is listened for there (`ADDRESSES`)."""

    @property
    def number(self) -> int:
        return int(self.name.rpartition("-")[2])

    @property
    def main_address(self) -> str:
        return self.addresses[ADDRESSES[self.role][0]]


@dataclass(frozen=True, slots=True)
class Choices:
    """What was asked for once and holds for every later start."""

    store: MetaStoreKind
    ports: Ports = Ports()
    bucket: str | None = field(default=None, repr=False)
    settings: Mapping[str, str] = field(default_factory=dict)
    is_secure: bool = False
    """Clients come by TLS, and log in."""
    parts_have_tls: bool = False
    """Nodes, the meta service and the UI speak TLS alone. Of a secure cluster; False: it was made by a version that
    knew TLS for clients only."""
    etcd_has_tls: bool = False
    """Its members, too. They keep each other's addresses in their data, so it never changes."""

    @property
    def addresses(self) -> Mapping[Role, tuple[str, ...]]:
        return SECURE_ADDRESSES if self.is_secure else ADDRESSES

    @property
    def most_nodes(self) -> int:
        return MOST_SECURE_NODES if self.is_secure else MAX_NODES


@dataclass(frozen=True, slots=True)
class Asked:
    """The options of one `cluster start`; None where nothing was said. `bucket` is absolute or a URL."""

    nodes: int | None = None
    port_base: int | None = None
    bucket: str | None = field(default=None, repr=False)
    settings: Sequence[str] = ()
    is_secure: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    choices: Choices
    parts: tuple[Part, ...]
    """In the order in which they are started."""
    security: Path | None = field(default=None, compare=False)
    """Where the files of a secure cluster are."""

    @property
    def bootstrap(self) -> str:
        return ",".join(part.main_address for part in self.of(Role.NODE))

    def context_options(self, *, without: Collection[str] = ()) -> str:
        """What `stratalog context add` takes, so that commands go to this cluster. `without`: names of nodes."""
        nodes = [part for part in self.of(Role.NODE) if part.name not in without]
        admin = ",".join(part.addresses["admin"] for part in nodes)
        bootstrap = ",".join(part.main_address for part in nodes)
        if self.choices.parts_have_tls:
            admin = ",".join(f"https://{part.addresses['admin']}" for part in nodes)
        token = self.choices.settings.get("auth.token.file")
        files = f" --token-file {quote(token)}" if token else ""
        if self.security is not None:
            files += f" --client-config {quote(str(self.security / CLIENT_FILE))}"
            if self.choices.parts_have_tls:
                files += f" --certificate-folder {quote(str(self.security / OPERATOR))}"
        return f"--admin {admin} --bootstrap {bootstrap} --meta {self.meta_urls}{files}"

    @property
    def meta_urls(self) -> str:
        scheme = "https" if self.choices.parts_have_tls else "http"
        return ",".join(f"{scheme}://{part.addresses['http']}" for part in self.of(Role.META))

    @property
    def page_address(self) -> str:
        return f"{HOST}:{self.choices.ports.page}"

    def of(self, role: Role) -> list[Part]:
        return [part for part in self.parts if part.role is role]

    def part(self, name: str) -> Part:
        """Raises NotFound."""
        for part in self.parts:
            if part.name == name:
                return part
        raise NotFound(f"the cluster has no part {name!r:.40}: it has {', '.join(part.name for part in self.parts)}")

    def with_one_more_node(self) -> tuple[Plan, Part]:
        """Raises LimitExceeded."""
        numbers = [part.number for part in self.of(Role.NODE)]
        most = self.choices.most_nodes
        if len(numbers) >= most:
            raise LimitExceeded(f"{most} nodes are the most on one machine, and it has that many already")
        part = _part(Role.NODE, max(numbers, default=0) + 1, self.choices)
        return replace(self, parts=(*self.parts, part)), part


def first_plan(asked: Asked, *, has_etcd: bool) -> Plan:
    """The plan of a new cluster. Raises InvalidRequest."""
    nodes = DEFAULT_NODES if asked.nodes is None else asked.nodes
    most = MOST_SECURE_NODES if asked.is_secure else MAX_NODES
    if not 1 <= nodes <= most:
        raise InvalidRequest(f"--nodes {nodes}: expected 1 to {most}")
    ports = Ports() if asked.port_base is None else Ports.from_base(asked.port_base)
    store = MetaStoreKind.ETCD if has_etcd else MetaStoreKind.ROCKSDB
    counts = {
        Role.ETCD: _ETCD_MEMBERS if has_etcd else 0,
        Role.META: _META_INSTANCES if has_etcd else 1,
        Role.NODE: nodes,
    }
    usual = {"default.replication.factor": str(min(nodes, _USUAL_REPLICAS))}
    if asked.is_secure:
        usual |= {
            "authorizer.class.name": "stratalog",
            "super.users": f"User:{ADMIN_USER}",
            MECHANISMS_SETTING: "SCRAM-SHA-512,SCRAM-SHA-256,PLAIN",
        }
    settings = usual | _settings(asked, is_secure=asked.is_secure)
    choices = Choices(
        store,
        ports,
        asked.bucket,
        settings,
        is_secure=asked.is_secure,
        parts_have_tls=asked.is_secure,
        etcd_has_tls=asked.is_secure and has_etcd,
    )
    parts = tuple(_part(role, number, choices) for role in Role for number in range(1, counts[role] + 1))
    return Plan(choices, parts)


def next_plan(known: Plan, asked: Asked) -> Plan:
    """The plan of a later start on the same data: what is asked again takes the place of what was asked before.

    Raises Conflict where the data cannot follow.
    """
    nodes = len(known.of(Role.NODE))
    if asked.nodes is not None and asked.nodes != nodes:
        step = "start it without --nodes, then add with `stratalog cluster add`"
        if asked.nodes < nodes:
            step = "start it without --nodes; to end one node use `stratalog cluster stop --part NAME`"
        raise Conflict(f"the cluster has {counted(nodes, 'node')}, not {asked.nodes}: {step}")
    if asked.port_base is not None and Ports.from_base(asked.port_base) != known.choices.ports:
        raise Conflict(
            f"the cluster keeps its ports (Kafka's from {known.choices.ports.kafka} on), for its parts know each other "
            "by them: leave --port-base out"
        )
    if asked.is_secure and not known.choices.is_secure:
        raise Conflict(
            "the cluster was made without --secure, and its clients know it so: create another one with --secure, or "
            "leave it out"
        )
    settings = _settings(asked, is_secure=known.choices.is_secure)
    choices = replace(known.choices, settings={**known.choices.settings, **settings})
    if asked.is_secure:
        # No part of an earlier run is left when this one begins, so all parts change together.
        choices = replace(choices, parts_have_tls=True)
    if asked.bucket is not None:
        choices = replace(choices, bucket=asked.bucket)
    return replace(known, choices=choices)


def secured(plan: Plan, directory: Path) -> Plan:
    """The plan with the files of a secure cluster, which move with its directory. Parts that speak TLS share no token:
    with it each could act as whoever runs the cluster. Their certificates say who they are."""
    if not plan.choices.is_secure:
        return plan
    folder = directory / SECURITY_FOLDER
    settings = {key: value for key, value in plan.choices.settings.items() if key != "auth.token.file"}
    if not plan.choices.parts_have_tls:
        settings["auth.token.file"] = str(folder / TOKEN_FILE)
    return replace(plan, choices=replace(plan.choices, settings=settings), security=folder)


def _settings(asked: Asked, *, is_secure: bool) -> dict[str, str]:
    settings = parse_assignments(asked.settings)
    if own := [key for key in OWN_SETTINGS if key in settings]:
        raise InvalidRequest(f"--set {own[0]}: each part has its own, which the cluster gives it: leave it out")
    if is_secure and (made := [key for key in SECURE_SETTINGS if key in settings]):
        raise InvalidRequest(f"--set {made[0]}: a cluster with --secure sets it, with files of its own: leave it out")
    return settings


def _part(role: Role, number: int, choices: Choices) -> Part:
    names, ports = choices.addresses[role], choices.ports.of(role, number)
    return Part(f"{role}-{number}", role, {what: f"{HOST}:{port}" for what, port in zip(names, ports, strict=False)})


# How a part is run ----------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Programs:
    """`stratalog` is a command with its first words; `etcd` is None where none was found."""

    stratalog: tuple[str, ...]
    etcd: Path | None


def variables_of(part: Part, plan: Plan) -> dict[str, str]:
    """What a part is given by its environment: the URL of a bucket may hold a secret, and every user of the machine can
    read a command."""
    bucket = plan.choices.bucket
    return {} if bucket is None or part.role is Role.ETCD else {BUCKET_VARIABLE: bucket}


def command_of(part: Part, plan: Plan, directory: Path, programs: Programs) -> list[str]:
    """What is executed. Raises NotFound when there is no etcd."""
    match part.role:
        case Role.ETCD:
            return _etcd_command(part, plan, directory, programs)
        case Role.META:
            place = ["--data", str(directory / part.name)]
            if plan.choices.store is MetaStoreKind.ETCD:
                members = ",".join(member.addresses["client"] for member in plan.of(Role.ETCD))
                place = ["--store", f"etcd://{members}"]
                if plan.choices.etcd_has_tls:
                    place += _etcd_access(directory / SECURITY_FOLDER / ETCD_CLIENT)
            words = ["meta", "start", "--listen", part.addresses["http"], *place]
        case Role.NODE:
            words = ["node", "start", "--id", str(part.number), "--data", str(directory / part.name)]
            words += ["--listen", part.addresses.get("internal", part.addresses["kafka"]), "--meta", plan.meta_urls]
    settings = {**plan.choices.settings, "metrics.listen": part.addresses["admin"]}
    settings |= _secure_settings(part, plan.choices, directory / SECURITY_FOLDER / part.name)
    for key, value in settings.items():
        words += ["--set", f"{key}={value}"]
    return [*programs.stratalog, *words]


def _secure_settings(part: Part, choices: Choices, certificates: Path) -> dict[str, str]:
    settings: dict[str, str] = {}
    if choices.parts_have_tls:
        settings |= {"ssl.certificate.folder": str(certificates), "http.security.protocol": "SSL"}
        if "auth.role.tokens.file" not in choices.settings:
            settings["auth.role.tokens.file"] = str(certificates.with_name(ROLES_FILE))
    if choices.is_secure and part.role is Role.NODE:
        settings |= {
            "listeners": f"{CLIENTS}://{part.addresses['kafka']}",
            "listener.security.protocol.map": f"{CLIENTS}:SASL_SSL",
            "ssl.certificate.folder": str(certificates),
        }
        if choices.parts_have_tls:
            settings["security.inter.broker.protocol"] = "SSL"
    return settings


def _etcd_access(certificates: Path) -> list[str]:
    files = {"--etcd-ca": "ca.crt", "--etcd-cert": "tls.crt", "--etcd-key": "tls.key"}
    return [word for option, name in files.items() for word in (option, str(certificates / name))]


def _etcd_command(part: Part, plan: Plan, directory: Path, programs: Programs) -> list[str]:
    if programs.etcd is None:
        raise NotFound(
            f"the metadata of this cluster is in etcd ({directory}/etcd-*), and there is no safe etcd here any more: "
            f"put one of version {FIRST_SAFE} or later on PATH, for earlier ones may lose data"
        )
    scheme = "https" if plan.choices.etcd_has_tls else "http"
    client, peer = (f"{scheme}://{part.addresses[what]}" for what in ADDRESSES[Role.ETCD])
    members = ",".join(f"{member.name}={scheme}://{member.addresses['peer']}" for member in plan.of(Role.ETCD))
    words = {
        "name": part.name,
        "data-dir": str(directory / part.name),
        "listen-client-urls": client,
        "advertise-client-urls": client,
        "listen-peer-urls": peer,
        "initial-advertise-peer-urls": peer,
        "initial-cluster": members,
        "initial-cluster-state": "new",
        "initial-cluster-token": f"stratalog-{plan.choices.ports.others}",
        "log-level": "warn",
        "logger": "zap",
    }
    flags = []
    if plan.choices.etcd_has_tls:
        certificates = directory / SECURITY_FOLDER / part.name
        for kind in ("", "peer-"):
            words |= {
                f"{kind}cert-file": str(certificates / "tls.crt"),
                f"{kind}key-file": str(certificates / "tls.key"),
                f"{kind}trusted-ca-file": str(certificates / "ca.crt"),
            }
        flags = ["--client-cert-auth", "--peer-client-cert-auth"]
    return [str(programs.etcd), *(word for key, value in words.items() for word in (f"--{key}", value)), *flags]
