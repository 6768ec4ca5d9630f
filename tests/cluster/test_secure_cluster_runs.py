"""`cluster start --secure` as a person runs it: the settings that it prints work, for it and for other libraries."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

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

        (options,) = re.findall(r"^commands  stratalog context add NAME (.*)$", said, re.MULTILINE)
        done("context", "add", "here", *options.split(), folder=tmp_path)
        assert done("consume", "orders", folder=tmp_path) == "one\ntwo\n"
        assert "admin" in done("users", "list", folder=tmp_path)
        done(
            "acls", "add", "--allow-principal", "User:bob", "--operation", "read", "--topic", "orders", folder=tmp_path
        )

        added = done("cluster", "add", "--data", str(data), folder=tmp_path)
        assert f"ready bootstrap=127.0.0.1:{base},127.0.0.1:{base + 1}" in added
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
