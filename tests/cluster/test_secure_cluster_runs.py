"""`cluster start --secure` as a person runs it: the settings that it prints work, for it and for other libraries."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from stratalog.connect.shown_certificate import tls_of as tls_of_parts
from stratalog.machines.sasl.scram import credential_from
from stratalog.meta_api.http_client import HttpMetaClient
from stratalog.model.commands.retirement_commands import RetireNode
from stratalog.model.commands.rights_commands import AlterCredentials
from stratalog.model.commands.table_commands import (
    AcquireLock,
    Command,
    CreateTopic,
    PrepareSegment,
    ProposeIsr,
    RegisterNode,
)
from stratalog.model.errors import Forbidden, Unauthorized
from stratalog.model.metadata import Heartbeat, NodeInfo, life_name
from stratalog.model.scram import LEAST_ITERATIONS, ScramCredential, ScramMechanism, UserCredential
from stratalog_cli.security.passwords import salted_password
from support.closed_clients import by_librdkafka
from support.cluster_ports import free_block
from support.waiting import eventually_sync

PROGRAM = str(Path(sys.executable).with_name("stratalog"))
VALUES = [b"one", b"two"]


@contextmanager
def cluster(data: Path, *words: str) -> Iterator[str]:
    """Its output, once it is ready."""
    log = data.with_suffix(".log")
    with log.open("ab") as output:
        begin = output.tell()
        process = subprocess.Popen(
            [PROGRAM, "cluster", "start", "--data", str(data), *words],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | {"XDG_CONFIG_HOME": str(data.parent)},
        )

    def said() -> str:
        return log.read_bytes()[begin:].decode()

    try:
        eventually_sync(lambda: "\nready bootstrap=" in said() or process.poll() is not None, timeout=90)
        assert process.poll() is None, said()
        yield said()
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def run(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"XDG_CONFIG_HOME": str(folder)}
    return subprocess.run([PROGRAM, *words], env=environment, capture_output=True, text=True, timeout=120)


def done(*words: str, folder: Path) -> str:
    ran = run(*words, folder=folder)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def of_librdkafka(said: str) -> dict[str, str]:
    """The settings in the file that is printed for kcat."""
    (file,) = re.findall(r"^clients  librdkafka: kcat -F (\S+) -L$", said, re.MULTILINE)
    return dict(line.split("=", 1) for line in Path(file).read_text().splitlines())


def tls_of(folder: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    if (folder / "tls.crt").exists():
        context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    return context


def get(url: str, context: ssl.SSLContext | None = None) -> int:
    """The status of its answer; 0: it has none."""
    handlers = [] if context is None else [urllib.request.HTTPSHandler(context=context)]
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), *handlers)
    try:
        with opener.open(url, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code
    except (OSError, http.client.HTTPException):
        return 0


def require_tls_at_each_port(data: Path) -> None:
    told = json.loads((data / "cluster.json").read_text())
    folder, ports = data / "security", {told["page"].split("/")[2]: "authority"}
    for part in told["parts"]:
        authority = "etcd-authority" if part["role"] == "etcd" else "authority"
        ports |= dict.fromkeys(part["addresses"].values(), authority)
    for address, authority in ports.items():
        host, _, port = address.rpartition(":")
        # (etcd answers plain text with 400: "client sent an HTTP request to an HTTPS server".)
        assert get(f"http://{address}/health") in (0, 400), address
        context = ssl.create_default_context(cafile=str(folder / authority / "ca.crt"))
        with socket.create_connection((host, int(port)), 10) as plain:
            context.wrap_socket(plain, server_hostname=host).close()

    members = [part["addresses"] for part in told["parts"] if part["role"] == "etcd"]
    for address in members:
        url, peers = f"https://{address['client']}/health", f"https://{address['peer']}/members"
        assert (get(url, tls_of(folder / "etcd-client")), get(peers, tls_of(folder / "etcd-client"))) == (200, 200)
        for name in ("etcd-authority", "node-1"):
            context = tls_of(folder / name)
            context.load_verify_locations(folder / "etcd-authority" / "ca.crt")
            assert (get(url, context), get(peers, context)) == (0, 0), name


def require_least_privilege(data: Path, options: str) -> None:
    """All that the process of node 1 is given does not suffice to act as node 2, or as whoever runs the cluster."""
    folder = data / "security"
    (urls,) = re.findall(r"--meta (\S+)", options)
    token = (folder / "token").read_text().strip()
    told = json.loads((data / "cluster.json").read_text())["parts"]
    for pid in (part["pid"] for part in told if part["role"] != "etcd"):
        words = Path(f"/proc/{pid}/cmdline").read_text()
        assert "auth.role.tokens.file" in words
        assert not [one for one in ("auth.token.file", "security/token", "security/operator") if one in words]

    async def attack() -> None:
        async with AsyncExitStack() as opened:

            def client(name: str, shown: str | None = None, *, with_credentials: bool = False) -> HttpMetaClient:
                tls = tls_of_parts(str(folder / name))
                made = HttpMetaClient(
                    urls, token=None if shown is None else lambda: shown, tls=tls, with_credentials=with_credentials
                )
                opened.push_async_callback(made.close)
                return made

            node, thief = client("node-1", token), client("authority", token)
            operator = client("operator", with_credentials=True)
            nodes = {one.node_id: one for one in await node.nodes()}
            segment = (await node.snapshot()).shards[0].segments[-1]
            lives = {number: one.life for number, one in nodes.items()}
            salted = UserCredential("mallory", ScramMechanism.SCRAM_SHA_512, credential())
            attacks: tuple[Command[Any], ...] = (
                RegisterNode(NodeInfo(2, nodes[2].storage_id, "127.0.0.1", 9)),
                CreateTopic("stolen", 1, 1, {}, caller=lives[2]),
                PrepareSegment(segment.key, caller=lives[2]),
                ProposeIsr(segment.key, (1,), segment.isr_version, caller=lives[2]),
                AcquireLock("tier/2", life_name(2, lives[2].epoch), 60_000, caller=lives[2]),
                CreateTopic("stolen", 1, 1, {}),
                AlterCredentials(put=(salted,)),
                RetireNode(2),
            )
            version = await operator.read_version()
            for command in attacks:
                for who in (node, thief):
                    with pytest.raises(Forbidden):
                        await who.perform(command)
            for who in (node, thief):
                with pytest.raises(Forbidden):
                    await who.heartbeat(Heartbeat(lives[2]))
            for who in (client("authority", token, with_credentials=True), operator):
                with pytest.raises(Forbidden):
                    await who.snapshot()
            with pytest.raises(Unauthorized):
                await client("authority").nodes()
            assert await operator.read_version() >= version
            assert "stolen" not in {topic.name for topic in (await node.snapshot()).topics}

    asyncio.run(attack())


def credential() -> ScramCredential:
    salted = salted_password("a password of mine", ScramMechanism.SCRAM_SHA_512, LEAST_ITERATIONS)
    return credential_from(ScramMechanism.SCRAM_SHA_512, salted.salted, salted.salt, salted.iterations)


def test_what_a_secure_cluster_prints_lets_clients_in_and_keeps_others_out(tmp_path: Path) -> None:
    data, base = tmp_path / "secure", free_block()
    with cluster(data, "--secure", "--nodes", "1", "--port-base", str(base)) as said:
        settings = of_librdkafka(said)
        assert settings["bootstrap.servers"] == f"127.0.0.1:{base}"
        assert settings["sasl.password"] not in said
        assert f" (log in with the line of {data / 'security' / 'token'})\n" in said
        assert by_librdkafka(dict(settings), "orders", VALUES) == VALUES

        for changed in ({"security.protocol": "plaintext"}, {"sasl.password": "guess"}):
            with pytest.raises(KafkaException):
                AdminClient(settings | changed | {"log_level": "0"}).list_topics(timeout=5)

        require_tls_at_each_port(data)
        (options,) = re.findall(r"^commands  stratalog context add NAME (.*)$", said, re.MULTILINE)
        done("context", "add", "here", *options.split(), folder=tmp_path)
        assert done("consume", "orders", folder=tmp_path) == "one\ntwo\n"
        assert "admin" in done("users", "list", folder=tmp_path)
        done(
            "acls", "add", "--allow-principal", "User:bob", "--operation", "read", "--topic", "orders", folder=tmp_path
        )

        added = done("cluster", "add", "--data", str(data), folder=tmp_path)
        assert f"ready bootstrap=127.0.0.1:{base},127.0.0.1:{base + 1}" in added
        listed = done("nodes", "list", folder=tmp_path)
        assert listed.count("127.0.0.1") >= 2, listed
        require_least_privilege(data, options)
        assert "not ready" not in run("cluster", "status", "--data", str(data), folder=tmp_path).stdout
        checked = run("doctor", "--bootstrap-server", f"127.0.0.1:{base}", folder=tmp_path)
        assert checked.returncode == 0 and "2 nodes" in checked.stdout, checked.stdout + checked.stderr

    pids = [int(one) for one in re.findall(r"pid (\d+)$", said, re.MULTILINE)]
    assert pids and not [one for one in pids if Path(f"/proc/{one}").exists()]
    with cluster(data) as again:
        assert of_librdkafka(again) == settings
        assert done("consume", "orders", folder=tmp_path) == "one\ntwo\n"
        assert "User:bob" in done("acls", "list", folder=tmp_path)


def test_no_secret_is_in_a_process_list(tmp_path: Path) -> None:
    data = tmp_path / "secure"
    with cluster(data, "--secure", "--nodes", "1", "--port-base", str(free_block())) as said:
        secrets = [of_librdkafka(said)["sasl.password"], (data / "security" / "token").read_text().strip()]
        pids = re.findall(r"pid (\d+)$", said, re.MULTILINE)
        shown = b"".join(
            Path(f"/proc/{pid}/{what}").read_bytes() for pid in pids for what in ("cmdline", "environ")
        ).decode(errors="replace")
        assert "ssl.certificate.folder" in shown
        assert not [secret for secret in secrets if secret in shown or secret in said]
        logs = b"".join(one.read_bytes() for one in (data / "logs").iterdir()).decode(errors="replace")
        assert not [secret for secret in secrets if secret in logs]
