"""A real Kubernetes API server over a real etcd, on loopback, without nodes: nothing runs a pod.

The server is the one that `STRATALOG_KUBE_APISERVER` names, else one on PATH, else the one that tools/kube_apiserver.sh
built. What controllers and kubelets do is left undone, or done by the test.
"""

from __future__ import annotations

import json
import os
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from http.client import HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any

from stratalog_operator.kube.rights import RIGHTS, Right, Scope, rules
from support.certificates import Certificates, make_certificates
from support.cluster_ports import free_port
from support.etcd_server import etcd_binary, etcd_servers
from support.s3_servers import stop_process
from support.waiting import eventually_sync

_ROOT = Path(__file__).resolve().parents[2]
NO_API_SERVER = (
    "no kube-apiserver: run `make apiserver` (it needs Go), put one in PATH, or name one in STRATALOG_KUBE_APISERVER"
)
TOKEN = "admin-of-a-test"
OPERATOR_TOKEN = "operator-of-a-test"
OPERATOR = "operator"
"""A user with exactly the rights that `let_operate` gives."""
LIMITED_TOKEN = "limited-of-a-test"
LIMITED = "limited"
"""The same, without those in volumes."""
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"


def apiserver_binary() -> Path | None:
    """None without one, or without the etcd that it needs."""
    named = os.environ.get("STRATALOG_KUBE_APISERVER") or shutil.which("kube-apiserver")
    built = Path(named) if named else _ROOT / ".cache" / "bin" / "kube-apiserver"
    return built if built.exists() and etcd_binary() is not None else None


_kept = threading.local()


@lru_cache
def _context(ca: Path) -> ssl.SSLContext:
    """Made once: that takes tens of milliseconds."""
    return ssl.create_default_context(cafile=str(ca))


@dataclass(frozen=True, slots=True)
class Answer:
    """What the server said: an object, or a Status that tells why not."""

    code: int
    body: dict[str, Any]

    @property
    def is_ok(self) -> bool:
        return self.code < 300

    @property
    def message(self) -> str:
        return str(self.body.get("message", ""))


@dataclass(frozen=True, slots=True)
class ApiServer:
    """A running server, asked as its administrator unless `user` says who."""

    port: int
    certificates: Certificates

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        kind: str = "application/json",
        accept: str = "application/json",
        user: str | None = None,
    ) -> Answer:
        """One request. An answer that is not good is an answer as well."""
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": kind, "Accept": accept}
        if user is not None:
            headers["Impersonate-User"] = user
        data = None if body is None else json.dumps(body).encode()
        while True:
            connection, is_kept = self._connection()
            try:
                connection.request(method, path, data, headers)
                response = connection.getresponse()
                return Answer(response.status, _read(response.read()))
            except (OSError, HTTPException):
                connection.close()
                _kept.connections.pop(self.port)
                # One that was kept may have been closed by the server meanwhile.
                if not is_kept:
                    raise

    def connect(self) -> HTTPSConnection:
        """A connection of the caller's own."""
        return HTTPSConnection("127.0.0.1", self.port, timeout=30, context=_context(self.certificates.ca))

    def _connection(self) -> tuple[HTTPSConnection, bool]:
        """This thread's connection, and whether it existed: a new one costs more than most requests."""
        connections: dict[int, HTTPSConnection] = _kept.__dict__.setdefault("connections", {})
        is_kept = self.port in connections
        if not is_kept:
            connections[self.port] = self.connect()
        return connections[self.port], is_kept

    def table(self, path: str) -> dict[str, Any]:
        """What `kubectl get` shows."""
        return self.ask("GET", path, accept="application/json;as=Table;v=v1;g=meta.k8s.io").body

    def apply(self, path: str, body: object, manager: str, *, force: bool = False) -> Answer:
        """Server-side apply."""
        query = f"?fieldManager={manager}&force={str(force).lower()}"
        return self.ask("PATCH", f"{path}{query}", body, kind=APPLY)

    def define(self, definition: dict[str, Any]) -> None:
        """Take a definition, and wait until its kind is served."""
        name = definition["metadata"]["name"]
        path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        made = self.ask("POST", path, definition)
        assert made.is_ok, made.message
        eventually_sync(lambda: _is_established(self.ask("GET", f"{path}/{name}")), timeout=60)
        spec = definition["spec"]
        served = f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}"
        eventually_sync(lambda: self.ask("GET", served).is_ok, timeout=60)

    def let_operate(self, namespace: str, *, with_volumes: bool = True) -> None:
        """Give the operator's user the rights of the operator's roles; without those in volumes, the limited one."""
        user = OPERATOR if with_volumes else LIMITED
        rights = RIGHTS[Scope.WATCHED] | RIGHTS[Scope.OWN]
        self._give("Role", f"/namespaces/{namespace}/roles", f"/namespaces/{namespace}/rolebindings", rights, user)
        if with_volumes:
            self._give("ClusterRole", "/clusterroles", "/clusterrolebindings", RIGHTS[Scope.WHOLE], user)

    def _give(self, kind: str, roles: str, bindings: str, rights: frozenset[Right], user: str) -> None:
        root, group = "/apis/rbac.authorization.k8s.io/v1", "rbac.authorization.k8s.io"
        metadata = {"name": "stratalog-operator"}
        made = self.ask("POST", root + roles, {"metadata": metadata, "rules": rules(rights)})
        assert made.is_ok or made.code == 409, made.message
        binding = {
            "metadata": metadata,
            "subjects": [{"kind": "User", "name": user, "apiGroup": group}],
            "roleRef": {"kind": kind, "name": "stratalog-operator", "apiGroup": group},
        }
        bound = self.ask("POST", root + bindings, binding)
        assert bound.is_ok or bound.code == 409, bound.message

    def namespace(self, name: str) -> str:
        made = self.ask("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        assert made.is_ok, made.message
        return name


def _read(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {"message": text.decode(errors="replace")}
    return found if isinstance(found, dict) else {"message": text.decode(errors="replace")}


def _is_established(answer: Answer) -> bool:
    conditions = answer.body.get("status", {}).get("conditions") or []
    refused = [one["message"] for one in conditions if one["type"] == "NonStructuralSchema" and one["status"] == "True"]
    assert not refused, refused
    return any(one["type"] == "Established" and one["status"] == "True" for one in conditions)


@contextmanager
def api_server(folder: Path) -> Iterator[ApiServer]:
    binary = apiserver_binary()
    assert binary is not None, NO_API_SERVER
    certificates = make_certificates(folder / "certificates")
    tokens = folder / "tokens.csv"
    tokens.write_text(
        f"{TOKEN},admin,admin,system:masters\n{OPERATOR_TOKEN},{OPERATOR},{OPERATOR}\n{LIMITED_TOKEN},{LIMITED},{LIMITED}\n"
    )
    with etcd_servers(folder / "etcd", 1) as etcd:
        server = ApiServer(free_port(), certificates)
        command = [
            str(binary), "--etcd-servers", f"http://{etcd.endpoints[0]}", "--bind-address", "127.0.0.1",
            "--secure-port", str(server.port), "--advertise-address", "127.0.0.1",
            "--tls-cert-file", str(certificates.server), "--tls-private-key-file", str(certificates.server_key),
            "--service-cluster-ip-range", "10.97.0.0/16", "--token-auth-file", str(tokens),
            "--authorization-mode", "RBAC", "--service-account-issuer", "https://kubernetes.default.svc",
            "--service-account-signing-key-file", str(certificates.server_key),
            "--service-account-key-file", str(certificates.server_key), "--endpoint-reconciler-type", "none",
            "--cert-dir", str(folder / "made"), "--disable-admission-plugins", "ServiceAccount",
        ]  # fmt: skip
        with (folder / "apiserver.log").open("ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            eventually_sync(lambda: process.poll() is not None or _is_ready(server), timeout=90)
            assert process.poll() is None, f"kube-apiserver ended at once: see {folder / 'apiserver.log'}"
            yield server
        finally:
            stop_process(process)


def _is_ready(server: ApiServer) -> bool:
    try:
        return server.ask("GET", "/readyz").code == 200
    except OSError:
        return False
