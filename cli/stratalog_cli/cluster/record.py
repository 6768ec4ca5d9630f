"""A cluster's two files as text: `cluster.json`, what runs where, for everybody; `options.json`, what was asked for.

    cluster.json  {"bootstrap": "H:P,H:P", "page": "http://H:P/",
                   "parts": [{"name": "node-1", "role": "node", "pid": 123, "addresses": {…}}]}
    options.json  {"store": "etcd", "ports": {"kafka": 9092, "others": 9644}, "bucket": null, "settings": {…},
                   "secure": false, "parts_have_tls": false, "etcd_has_tls": false}

The last two are left out where they are false, as earlier versions know neither.
`pid` is null while a part does not run, `page` while no cluster UI is served. Pure; what is read is checked, for
people edit files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Annotated, Final, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from stratalog.model.addresses import LAST_PORT, parse_address
from stratalog.model.errors import InvalidRequest
from stratalog_cli.cluster.plan import Choices, MetaStoreKind, Part, Plan, Ports, Role

CLUSTER_FILE: Final = "cluster.json"
OPTIONS_FILE: Final = "options.json"
_NAME: Final = re.compile(r"(etcd|meta|node)-[1-9][0-9]{0,3}")

_Port = Annotated[int, Field(ge=1, le=LAST_PORT)]
F = TypeVar("F", bound=BaseModel)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=False)


class PartEntry(_Strict):
    name: str
    role: Role
    pid: int | None
    addresses: dict[str, str]


class ClusterFile(_Strict):
    bootstrap: str
    page: str | None = None
    parts: list[PartEntry]


class PortsEntry(_Strict):
    kafka: _Port
    others: _Port


class OptionsFile(_Strict):
    store: MetaStoreKind
    ports: PortsEntry
    bucket: str | None
    settings: dict[str, str]
    secure: bool = False
    parts_have_tls: bool = False
    etcd_has_tls: bool = False


def cluster_text(plan: Plan, pids: Mapping[str, int], page: str | None = None) -> str:
    """A part per line, for `grep`. `pids` by name, of the parts that run; `page` is the URL of the cluster UI."""
    parts = [
        PartEntry(name=part.name, role=part.role, pid=pids.get(part.name), addresses=dict(part.addresses))
        for part in plan.parts
    ]
    lines = ",\n".join(f"  {json.dumps(part.model_dump(mode='json'))}" for part in parts)
    head = f'"bootstrap": {json.dumps(plan.bootstrap)}, "page": {json.dumps(page)}'
    return f'{{{head}, "parts": [\n{lines}\n]}}\n'


def options_text(choices: Choices) -> str:
    ports = PortsEntry(kafka=choices.ports.kafka, others=choices.ports.others)
    file = OptionsFile(
        store=choices.store,
        ports=ports,
        bucket=choices.bucket,
        settings=dict(choices.settings),
        secure=choices.is_secure,
        parts_have_tls=choices.parts_have_tls,
        etcd_has_tls=choices.etcd_has_tls,
    )
    left_out = {name for name in ("parts_have_tls", "etcd_has_tls") if not getattr(file, name)}
    return file.model_dump_json(indent=1, exclude=left_out) + "\n"


def plan_of(cluster: str, options: str, *, where: str) -> tuple[Plan, dict[str, int]]:
    """The plan and the pids by name. `where` is the directory, for messages. Raises InvalidRequest."""
    options_file = _read(OptionsFile, options, f"{where}/{OPTIONS_FILE}")
    file = _read(ClusterFile, cluster, f"{where}/{CLUSTER_FILE}")
    parts = [Part(line.name, line.role, line.addresses) for line in file.parts]
    ports = Ports(options_file.ports.kafka, options_file.ports.others)
    choices = Choices(
        options_file.store,
        ports,
        options_file.bucket,
        options_file.settings,
        is_secure=options_file.secure,
        parts_have_tls=options_file.parts_have_tls,
        etcd_has_tls=options_file.etcd_has_tls,
    )
    if choices.parts_have_tls > choices.is_secure or choices.etcd_has_tls > choices.parts_have_tls:
        raise _unreadable(f"{where}/{OPTIONS_FILE}", "TLS of etcd needs that of all parts, and that needs secure")
    wrong = _what_is_wrong(parts, choices)
    if wrong is not None:
        raise _unreadable(f"{where}/{CLUSTER_FILE}", wrong)
    order = list(Role)
    parts.sort(key=lambda part: (order.index(part.role), part.number))
    return Plan(choices, tuple(parts)), {line.name: line.pid for line in file.parts if line.pid is not None}


def _read(model: type[F], text: str, source: str) -> F:
    try:
        return model.model_validate(json.loads(text))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise _unreadable(source, f"{place}: {first['msg']}") from None
    except (ValueError, RecursionError) as error:
        raise _unreadable(source, str(error)) from None


def _what_is_wrong(parts: list[Part], choices: Choices) -> str | None:
    """Checks beyond the shape of the file: what no plan could contain."""
    for part in parts:
        if not _NAME.fullmatch(part.name) or part.name.partition("-")[0] != part.role:
            return f"{part.name!r:.40} is not the name of a part with the role {part.role}"
        if set(part.addresses) != set(choices.addresses[part.role]):
            return f"{part.name} needs the addresses {', '.join(choices.addresses[part.role])}"
        for address in part.addresses.values():
            try:
                parse_address(address)
            except ValueError as error:
                return f"{part.name}: {error}"
    if len({part.name for part in parts}) != len(parts):
        return "a part is named twice"
    has_etcd = any(part.role is Role.ETCD for part in parts)
    metas = sum(part.role is Role.META for part in parts)
    store = choices.store
    if has_etcd != (store is MetaStoreKind.ETCD) or not metas or (metas > 1 and not has_etcd):
        return f"its parts are not those of a cluster whose metadata are in {store}"
    if not any(part.role is Role.NODE for part in parts):
        return "it names no node"
    return None


def _unreadable(source: str, why: str) -> InvalidRequest:
    return InvalidRequest(
        f"{source} is not as `stratalog cluster` writes it ({why:.200}): put it back as it was, or choose "
        "another --data"
    )
