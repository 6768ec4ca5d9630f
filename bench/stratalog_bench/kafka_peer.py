"""Apache Kafka as peer: its jars from Maven Central, one node or several (broker and controller in one), on loopback.

Needs a JDK 17 and Maven; `missing()` says which is not there. Jars are kept in `.cache/peers`, data in the
run's folder.
The flags of the JVM are those of Kafka's own start script, but for the heap (1 GiB).
"""

from __future__ import annotations

import base64
import secrets
import shutil
import subprocess
from pathlib import Path

from stratalog_bench.processes import Server, await_line, begin, free_port

VERSION = "4.3.1"
COMPLETE = ".complete-with-tiered-storage-on-s3"
JVM = (
    *("-Xms1g", "-Xmx1g", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
    *("-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent", "-Djava.awt.headless=true"),
)

_LISTENERS = ("listeners", "advertised.listeners", "listener.security.protocol.map")

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
    return next((program for program in ("java", "javac", "mvn") if shutil.which(program) is None), None)


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
    source = peers / "S3RemoteStorage.java"
    subprocess.run(["javac", "-d", str(jars), "-cp", f"{jars}/*", str(source)], check=True, timeout=120)
    (jars / COMPLETE).touch()
    return jars


def _configuration(directory: Path, node_id: int, port: int, controllers: dict[int, int], extra: dict[str, str]) -> str:
    replicas = str(min(3, len(controllers)))
    in_sync = str(min(2, len(controllers)))
    settings = {
        "process.roles": "broker,controller",
        "node.id": str(node_id),
        "controller.quorum.voters": ",".join(f"{voter}@127.0.0.1:{at}" for voter, at in controllers.items()),
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controllers[node_id]}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": str(directory / "data"),
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": in_sync,
        "share.coordinator.state.topic.replication.factor": replicas,
        "share.coordinator.state.topic.min.isr": in_sync,
        "group.initial.rebalance.delay.ms": "0",
        # Deleted topics give their pages back at once, so that one cell's data does not burden the next one.
        "log.segment.delete.delay.ms": "1000",
    }
    for key, value in extra.items():  # a listener more is added to those that are there
        settings[key] = f"{settings[key]},{value}" if key in _LISTENERS else value
    return "".join(f"{key}={value}\n" for key, value in settings.items())


def prepare(jars: Path, directory: Path, extra: dict[str, str] | None = None) -> int:
    """Writes a fresh configuration and formats the data folder. Returns the port it will listen on."""
    (port,) = prepare_several(jars, [directory], extra)
    return port


def prepare_several(jars: Path, directories: list[Path], extra: dict[str, str] | None = None) -> list[int]:
    """The same for the nodes of one cluster, which are all controllers, too. Node 1 is in the first folder."""
    # 16 random bytes in base64url; a leading dash would be read as an option.
    cluster = base64.b64encode(secrets.token_bytes(16), altchars=b"AB").decode().rstrip("=")
    controllers = {node_id: free_port() for node_id in range(1, len(directories) + 1)}
    ports = []
    for node_id, directory in enumerate(directories, 1):
        directory.mkdir(parents=True)
        ports.append(free_port())
        (directory / "log4j2.properties").write_text(LOGGING, encoding="utf-8")
        file = directory / "server.properties"
        file.write_text(_configuration(directory, node_id, ports[-1], controllers, extra or {}), encoding="utf-8")
        command = [
            "java",
            "-cp",
            f"{jars}/*:{jars}",
            "kafka.tools.StorageTool",
            "format",
            "-t",
            cluster,
            "-c",
            str(file),
        ]
        subprocess.run(command, check=True, timeout=120, capture_output=True)
    return ports


def run(jars: Path, directory: Path, port: int) -> Server:
    """Starts the node that `prepare` made, on its data. Ready is logged after the broker is unfenced."""
    (server,) = run_several(jars, {directory: port})
    return server


def run_several(jars: Path, places: dict[Path, int]) -> list[Server]:
    """The nodes of one cluster wait for each other: all are started before one is awaited."""
    begun: list[Server] = []
    try:
        for directory, port in places.items():
            logging = f"-Dlog4j2.configurationFile={directory / 'log4j2.properties'}"
            command = [
                "java",
                *JVM,
                logging,
                "-cp",
                f"{jars}/*:{jars}",
                "kafka.Kafka",
                str(directory / "server.properties"),
            ]
            # A second start writes to another file: the line that says ready is searched from the file's beginning.
            log = directory / f"server-{len(list(directory.glob('server-*.log')))}.log"
            begun.append(begin("kafka", command, address=f"127.0.0.1:{port}", log=log))
            begun[-1].directory = directory
        for server in begun:
            await_line(server, "Kafka Server started")
    except BaseException:  # no caller has them yet to end them
        for server in begun:
            server.kill()
        raise
    return begun
