"""Kafka's own command line tools, each a JVM run of a second or two.

Their jars are those of the benchmark's peer (`bench/peers/pom.xml`): taken from `.cache/peers`, or fetched there once
by Maven. `JavaTools.find` says why they cannot be used.
"""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

_TOOLS = "org.apache.kafka.tools."


class JavaTools:
    def __init__(self, jars: Path) -> None:
        self.class_path = f"{jars}/*"

    @classmethod
    def find(cls, repository: Path) -> JavaTools:
        """Skips the test where there is no Java, or where Maven cannot get the jars."""
        if not shutil.which("java"):
            pytest.skip("there is no Java here (17 or later)")
        bench = str(repository / "bench")
        if bench not in sys.path:
            sys.path.append(bench)
        peer = importlib.import_module("stratalog_bench.kafka_peer")
        cache = repository / ".cache" / "peers"
        if not (cache / f"kafka-{peer.VERSION}" / ".complete").exists() and not shutil.which("mvn"):
            pytest.skip("Kafka's jars are not in .cache/peers, and there is no Maven to get them")
        try:
            return cls(peer.install(repository / "bench" / "peers", cache))
        except subprocess.SubprocessError as error:
            pytest.skip(f"Maven could not get Kafka's jars: {error}")

    def run(self, tool: str, *arguments: str, standard_input: str = "", timeout: float = 90) -> str:
        """What the tool printed, errors included. `tool` is a class below org.apache.kafka.tools, or a full name."""
        done = subprocess.run(
            [*self._command(tool), *arguments],
            input=standard_input,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert done.returncode == 0, f"{tool} {' '.join(arguments)}: exit code {done.returncode}\n{done.stdout[-3000:]}"
        return done.stdout

    def start(self, tool: str, *arguments: str) -> RunningTool:
        return RunningTool([*self._command(tool), *arguments])

    def _command(self, tool: str) -> list[str]:
        name = tool if "." in tool and not tool.startswith("consumer.") else _TOOLS + tool
        return ["java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", self.class_path, name]


class RunningTool:
    """A client that runs until it is stopped; `lines` are what it has printed so far, errors included."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(line.rstrip("\n"))

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> None:
        """As Ctrl-C does: it leaves its group."""
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
