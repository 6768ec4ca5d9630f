"""Apache Kafka as peer: its jars from Maven Central, one node (broker and controller in one), on loopback.

Needs Java 17 and Maven; `missing()` says which is not there. Jars are kept in `.cache/peers`, data in the run's folder.
The flags of the JVM are those of Kafka's own start script, but for the heap (1 GiB).
"""

from __future__ import annotations

import base64
import secrets
import shutil
import subprocess
from pathlib import Path

from stratalog_bench.processes import Server, free_port, start

VERSION = "4.3.1"
COMPLETE = ".complete-with-tiered-storage"
JVM = (
    *("-Xms1g", "-Xmx1g", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
    *("-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent", "-Djava.awt.headless=true"),
)

LOGGING = """\
status = error
appender.out.type = Console
appender.out.name = OUT
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{ISO8601} %p %m (%c)%n
rootLogger.level = info
rootLogger.appenderRef.out.ref = OUT
"""


def missing() -> str | None:
    """The program that is not here, if any."""
    return next((program for program in ("java", "mvn") if shutil.which(program) is None), None)


def install(peers: Path, cache: Path) -> Path:
    """The folder with Kafka's jars. Cost: one download of about 150 MB the first time."""
    jars = cache / f"kafka-{VERSION}"
    if (jars / COMPLETE).exists():
        return jars
    # Maven writes beside the pom: work on a copy, so that the checkout stays as it is.
    pom = cache / "pom" / "pom.xml"
    pom.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(peers / "pom.xml", pom)
    command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", "-DincludeScope=runtime"]
    subprocess.run([*command, f"-DoutputDirectory={jars}"], check=True, timeout=900)
    if not (jars / f"kafka_2.13-{VERSION}.jar").exists():
        raise FileNotFoundError(f"Maven left no kafka_2.13-{VERSION}.jar in {jars}")
    (jars / COMPLETE).touch()
    return jars


def _configuration(directory: Path, port: int, controller_port: int, extra: dict[str, str]) -> str:
    settings = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": str(directory / "data"),
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
        # Deleted topics give their pages back at once, so that one cell's data does not burden the next one.
        "log.segment.delete.delay.ms": "1000",
    } | extra
    return "".join(f"{key}={value}\n" for key, value in settings.items())


def prepare(jars: Path, directory: Path, extra: dict[str, str] | None = None) -> int:
    """Writes a fresh configuration and formats the data folder. Returns the port it will listen on."""
    directory.mkdir(parents=True)
    port = free_port()
    (directory / "log4j2.properties").write_text(LOGGING, encoding="utf-8")
    configuration = directory / "server.properties"
    configuration.write_text(_configuration(directory, port, free_port(), extra or {}), encoding="utf-8")
    # 16 random bytes in base64url; a leading dash would be read as an option.
    cluster = base64.b64encode(secrets.token_bytes(16), altchars=b"AB").decode().rstrip("=")
    command = ["java", "-cp", f"{jars}/*", "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(configuration)]
    subprocess.run(command, check=True, timeout=120, capture_output=True)
    return port


def run(jars: Path, directory: Path, port: int) -> Server:
    """Starts the node that `prepare` made, on its data. Ready is logged after the broker is unfenced."""
    logging = f"-Dlog4j2.configurationFile={directory / 'log4j2.properties'}"
    command = ["java", *JVM, logging, "-cp", f"{jars}/*", "kafka.Kafka", str(directory / "server.properties")]
    server = start(
        "kafka", command, address=f"127.0.0.1:{port}", log=directory / "server.log", ready="Kafka Server started"
    )
    server.directory = directory
    return server
