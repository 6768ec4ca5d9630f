"""The images that are tested: the product's own, from the Dockerfile, and one with the clients of the tests.

`STRATALOG_E2E_IMAGE` and `STRATALOG_E2E_CLIENTS_IMAGE` name images that are in the cluster's reach already. Otherwise
both are built here, under a tag made of their content, and loaded where the cluster is one of kind's.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from stratalog_e2e.kubernetes_api import Kubernetes
from stratalog_e2e.surroundings import REPOSITORY, kind_name

CLIENT_PACKAGES = ("confluent-kafka", "kafka-python")
STORE_IMAGE = "versity/versitygw:v1.8.0"
"""As deploy/examples/store.yaml names it; made here where it cannot be pulled."""
_SOURCES = (
    "Dockerfile", "requirements/all.txt", "requirements/build.txt", "pyproject.toml", "tools/etcd",
    "core", "storage_node", "meta_service", "cli", "operator", "pipeline",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Images:
    product: str
    clients: str


def images(kube: Kubernetes) -> Images:
    product = os.environ.get("STRATALOG_E2E_IMAGE") or build_product()
    clients = os.environ.get("STRATALOG_E2E_CLIENTS_IMAGE") or _build_clients(product)
    name = kind_name(kube)
    if name is not None:
        # Clusters other than kind's pull the images.
        _build_store()
        for image in (product, clients, STORE_IMAGE):
            load(image, name)
    return Images(product, clients)


def build_product() -> str:
    """Needs docker."""
    tag = f"stratalog:e2e-{_digest([REPOSITORY / one for one in _SOURCES])}"
    if not _is_there(tag):
        _docker_build(REPOSITORY, tag)
    return tag


def _build_clients(product: str) -> str:
    tests = REPOSITORY / "tests" / "support"
    own = [Path(__file__).parent / name for name in ("__init__.py", "logged_in.py", "traffic_pod.py")]
    tag = f"stratalog-clients:e2e-{_digest([tests, *own], product)}"
    if _is_there(tag):
        return tag
    locked = (REPOSITORY / "requirements" / "dev.txt").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as made:
        context = Path(made)
        (context / "requirements.txt").write_text("".join(_locked(locked, name) for name in CLIENT_PACKAGES))
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(tests, context / "clients" / "support", ignore=ignored)
        (context / "clients" / "stratalog_e2e").mkdir()
        for file in own:
            shutil.copy(file, context / "clients" / "stratalog_e2e")
        # It has a pip of its own: the product's image holds none.
        (context / "Dockerfile").write_text(
            "FROM python:3.11-slim AS build\n"
            "COPY requirements.txt /requirements.txt\n"
            "RUN python -m venv /opt/clients && /opt/clients/bin/python -m pip install --no-cache-dir"
            " --require-hashes --no-deps -r /requirements.txt\n"
            f"FROM {product}\n"
            "COPY --from=build /opt/clients/lib /opt/clients/lib\n"
            "COPY clients /opt/clients/own\n"
            "ENV PYTHONPATH=/opt/clients/own:/opt/clients/lib/python3.11/site-packages\n"
            'ENTRYPOINT ["python", "-m", "stratalog_e2e.traffic_pod"]\n'
        )
        _docker_build(context, tag)
    return tag


def _build_store() -> None:
    """The S3 server from its Go module, laid out as its publishers do."""
    if _is_there(STORE_IMAGE):
        return
    built = subprocess.run(
        [str(REPOSITORY / "tools" / "versitygw.sh")], capture_output=True, text=True, check=False, timeout=900,
        env={**os.environ, "CGO_ENABLED": "0"},
    )  # fmt: skip
    assert built.returncode == 0, f"{STORE_IMAGE} is not here, and cannot be built: {built.stderr}"
    with tempfile.TemporaryDirectory() as made:
        context = Path(made)
        shutil.copy(built.stdout.strip(), context / "versitygw")
        # Go's resolver and TLS need nothing else, unless it was linked with the C library: hence no FROM scratch.
        (context / "Dockerfile").write_text(
            'FROM python:3.11-slim\nCOPY versitygw /app/versitygw\nENTRYPOINT ["/app/versitygw"]\n'
        )
        _docker_build(context, STORE_IMAGE)


def _locked(text: str, name: str) -> str:
    found = re.search(rf"^{re.escape(name)}==.*?(?=^[a-z0-9]|\Z)", text, re.MULTILINE | re.DOTALL)
    assert found is not None, f"{name} is not in requirements/dev.txt"
    return found[0]


def _digest(places: list[Path], *words: str) -> str:
    digest = hashlib.sha256("\0".join(words).encode())
    for place in places:
        files = [place] if place.is_file() else sorted(one for one in place.rglob("*") if one.is_file())
        for file in files:
            if "__pycache__" not in file.parts:
                digest.update(file.relative_to(REPOSITORY).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:12]


def _docker_build(context: Path, tag: str) -> None:
    # The plain builder: it needs no plugin.
    done = subprocess.run(
        ["docker", "build", "-q", "-t", tag, str(context)],
        env={**os.environ, "DOCKER_BUILDKIT": "0"}, capture_output=True, text=True, check=False, timeout=1800,
    )  # fmt: skip
    assert done.returncode == 0, f"docker build of {tag}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}"


def _is_there(tag: str) -> bool:
    return subprocess.run(["docker", "image", "inspect", tag], capture_output=True, check=False).returncode == 0


def load(image: str, cluster: str) -> None:
    done = subprocess.run(
        ["kind", "load", "docker-image", image, "--name", cluster],
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, f"kind load {image}: {done.stderr[-2000:]}"
