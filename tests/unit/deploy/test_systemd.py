"""The systemd units: systemd takes them, and what they start runs and stops in order."""

from __future__ import annotations

import configparser
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stratalog.model.job_report import decode_report
from stratalog.settings.load import load_process_settings
from support.pipeline_extra import NO_PIPELINE
from support.source_tree import REPOSITORY
from support.waiting import eventually_sync

UNITS = REPOSITORY / "deploy" / "systemd"
SERVICES = sorted(UNITS.glob("*.service"))
UNIT_FILES = sorted([*SERVICES, *UNITS.glob("*.timer")])
JOB = UNITS / "stratalog-job@.service"
PROGRAM = str(Path(sys.executable).with_name("stratalog"))


def service(path: Path) -> configparser.SectionProxy:
    parsed = configparser.ConfigParser(interpolation=None, strict=False)
    parsed.optionxform = str  # type: ignore[assignment, method-assign]
    parsed.read(path)
    return parsed["Service"]


def command(path: Path) -> list[str]:
    return shlex.split(service(path)["ExecStart"])


def assigned(path: Path, *, with_examples: bool = False) -> dict[str, str]:
    """KEY=VALUE lines; with the examples that are commented out, too."""
    lines = [line.removeprefix("#") if with_examples else line for line in path.read_text().splitlines()]
    return dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith(("#", " ")))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
@pytest.mark.parametrize("path", UNIT_FILES, ids=lambda path: path.name)
def test_systemd_takes_the_unit(path: Path, tmp_path: Path) -> None:
    for one in (JOB, path):  # a timer starts the service of its name
        (tmp_path / one.name).write_text(one.read_text().replace("/opt/stratalog/bin/stratalog", PROGRAM))
    copy = tmp_path / path.name
    done = subprocess.run(["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, timeout=60)
    told = [line for line in (done.stdout + done.stderr).splitlines() if path.stem in line]
    assert done.returncode == 0 and not told, told


@pytest.mark.parametrize("path", SERVICES, ids=lambda path: path.stem)
def test_what_the_unit_starts_is_a_command_with_these_options(path: Path) -> None:
    words = command(path)
    shown = subprocess.run(
        [PROGRAM, *[word for word in words[1:] if word in ("start", "node", "meta", "pipeline", "run")], "--help"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert shown.returncode == 0
    assert not [word for word in words if word.startswith("--") and word not in shown.stdout]


@pytest.mark.parametrize("name", ["stratalog.conf", "meta.conf"])
def test_every_setting_of_the_examples_is_one(name: str, tmp_path: Path) -> None:
    settings = assigned(UNITS / name, with_examples=True)
    settings.pop("auth.token.file", None)
    assert load_process_settings(assignments=[f"{key}={value}" for key, value in settings.items()], environment={})


@pytest.mark.parametrize("name", ["stratalog.env", "meta.env"])
def test_every_variable_of_the_examples_is_read_by_the_command(name: str) -> None:
    verbs = ["node", "start"] if name == "stratalog.env" else ["meta", "start"]
    shown = subprocess.run([PROGRAM, *verbs, "--help"], capture_output=True, text=True, timeout=60).stdout
    variables = [one for one in assigned(UNITS / name, with_examples=True) if one.startswith("STRATALOG_")]
    assert variables and not [one for one in variables if one not in shown]


def test_the_node_of_the_unit_runs_and_stops_in_order(tmp_path: Path) -> None:
    config = tmp_path / "stratalog.conf"
    config.write_text((UNITS / "stratalog.conf").read_text().replace("127.0.0.1:9644", "127.0.0.1:0"))
    words = [PROGRAM, *command(UNITS / "stratalog.service")[1:]]
    words[words.index("--data") + 1], words[words.index("--config") + 1] = str(tmp_path / "data"), str(config)
    environment = {**os.environ, **assigned(UNITS / "stratalog.env"), "STRATALOG_LISTEN": "127.0.0.1:0"}
    log = tmp_path / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(words, env=environment, stdout=output, stderr=output, cwd=tmp_path)
    try:
        eventually_sync(lambda: "stratalog ready: " in log.read_text() or process.poll() is not None, 60)
        process.send_signal(getattr(signal, service(UNITS / "stratalog.service")["KillSignal"]))
        assert process.wait(60) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()
    assert "stratalog ready: " in log.read_text()


def test_the_job_of_the_unit_runs_and_leaves_its_result(tmp_path: Path) -> None:
    """As systemd starts it: with the words of the variable, and the instance's name in the paths."""
    pytest.importorskip("fastavro", reason=NO_PIPELINE)
    (tmp_path / "bucket").mkdir()
    given = assigned(UNITS / "job.env") | {"STRATALOG_BUCKET": str(tmp_path / "bucket")}
    given["STRATALOG_JOB"] = given["STRATALOG_JOB"].replace("--threads 2", "--threads 0")
    line = service(JOB)["ExecStart"].replace("%i", "nightly").replace("/var/lib/stratalog-jobs", str(tmp_path))
    words = [PROGRAM, *shlex.split(line.replace("$STRATALOG_JOB", given["STRATALOG_JOB"]))[1:]]
    done = subprocess.run(words, env={**os.environ, **given}, capture_output=True, text=True, timeout=120)
    report = decode_report((tmp_path / "nightly.json").read_text())
    assert (report.action, report.exit_code) == ("verify", done.returncode)
    shown = subprocess.run([PROGRAM, "pipeline", "results", str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert "nightly" in shown.stdout and "verify" in shown.stdout, shown.stderr
    assert shown.returncode == min(done.returncode, 1)


def test_each_variable_of_a_job_is_read_by_it() -> None:
    jobs = [line for line in (UNITS / "job.env").read_text().splitlines() if "STRATALOG_JOB=" in line]
    shown = ""
    for line in jobs:
        action = line.partition("=")[2].split()[0]
        shown += subprocess.run([PROGRAM, "pipeline", action, "--help"], capture_output=True, text=True).stdout
        options = [word for word in line.split() if word.startswith("--")]
        assert options and not [word for word in options if word not in shown], line
    shown += subprocess.run([PROGRAM, "--help"], capture_output=True, text=True).stdout
    variables = {name for name in assigned(UNITS / "job.env", with_examples=True) if name.startswith("STRATALOG_")}
    assert not [one for one in variables - {"STRATALOG_JOB"} if one not in shown]
