"""The command itself: help, exit codes, what it loads, completion."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stratalog.model.errors import (
    Conflict,
    Corrupt,
    DiskFull,
    InvalidRequest,
    NotFound,
    OutcomeUnknown,
    StratalogError,
    Unavailable,
)
from stratalog_cli.connect.output import narrowed
from stratalog_cli.entry import COMMANDS, build_app, exit_code_of

APP = build_app()

COMMAND = [str(Path(sys.executable).with_name("stratalog"))]
HEAVY = (
    "rich",
    "aiohttp",
    "prometheus_client",
    "stratalog_cli.doctor.dump",
    "stratalog_cli.doctor.doctor",
    "stratalog_cli.topics.topics",
)
NOWHERE = "127.0.0.1:1"


def test_start_loads_nothing_that_it_does_not_need() -> None:
    """`start` up to the point where the node itself is loaded: a refused setting stops it there."""
    program = (
        "import sys; sys.argv = ['stratalog', 'start', '--set', 'no.such.key=1']\n"
        "from stratalog_cli.entry import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert end.code == 2, end.code\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert ran.stdout.strip() == "[]"
    assert "no.such.key" in ran.stderr


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("typer", ["--version"]),
        ("re2", ["start", "--data", "data"]),
        ("grpc", ["meta", "start", "--store", "etcd://127.0.0.1:1"]),
        ("rich", ["settings"]),
        ("kopf", ["operator", "start", "--all-namespaces"]),
    ],
)
def test_a_package_that_is_not_installed_is_reported_in_a_line(module: str, words: list[str], tmp_path: Path) -> None:
    """As after `pip install WHEEL`, which brings what all parts need and no more."""
    program = (
        f"import sys; sys.modules[{module!r}] = None; sys.argv = {['stratalog', *words]!r}\n"
        "from stratalog_cli.entry import main; main()\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path)

    assert ran.returncode == 2, ran.stderr
    assert ran.stderr == (
        f"stratalog: this needs the Python module {module}, which is not installed here: install "
        "requirements/all.txt of the checkout beside it (docs/install.md)\n"
    )


def test_a_module_of_our_own_that_is_missing_is_a_fault() -> None:
    program = (
        "import sys; sys.modules['stratalog_cli.admin.settings_command'] = None; sys.argv = ['stratalog', 'settings']\n"
        "from stratalog_cli.entry import main; main()\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert ran.returncode == 1
    assert "Traceback" in ran.stderr


def test_a_running_node_loads_no_rich() -> None:
    """structlog would bring it along: 65 ms and 8 MB (telemetry.logs keeps it out)."""
    program = (
        "import stratalog.telemetry.logs, stratalog_cli.services.start, stratalog_cli.services.start_command, sys\n"
        "assert 'rich' not in sys.modules\n"
        "import rich\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("arguments", [[], ["topics"], ["pipeline"], ["cluster"], ["groups"], ["snapshot"]])
def test_help_cuts_no_summary(arguments: list[str]) -> None:
    ran = CliRunner().invoke(APP, [*arguments, "-h"], terminal_width=80)

    assert ran.exit_code == 0
    assert "..." not in ran.stdout.partition("Commands:")[2]
    assert all(len(line) <= 80 for line in ran.stdout.splitlines())


def test_help_lists_every_command() -> None:
    ran = CliRunner().invoke(APP, ["--help"])

    assert ran.exit_code == 0
    for name in COMMANDS:
        assert name in ran.stdout


@pytest.mark.parametrize("command", [*COMMANDS, "topics list", "topics create", "topics alter", "topics delete"])
def test_every_command_explains_itself(command: str) -> None:
    ran = CliRunner().invoke(APP, [*command.split(), "--help"])

    assert ran.exit_code == 0
    assert "Usage:" in ran.stdout


def test_the_version_is_that_of_the_distribution() -> None:
    ran = subprocess.run([*COMMAND, "--version"], capture_output=True, text=True, check=True)

    assert ran.stdout.startswith("stratalog 0.")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidRequest("x"), 2),
        (NotFound("x"), 2),
        (Conflict("x"), 2),
        (Corrupt("x", source="s", position=0), 1),
        (Unavailable("x"), 3),
        (DiskFull("x"), 3),
        (OutcomeUnknown("x"), 3),
    ],
)
def test_an_exit_code_reports_what_the_caller_can_do(error: StratalogError, code: int) -> None:
    assert exit_code_of(error) == code


@pytest.mark.parametrize("command", ["status", "topics list", "segments", "locate t 0 0", "seal t", "verify"])
def test_without_a_node_a_command_says_how_to_get_one(command: str) -> None:
    ran = CliRunner().invoke(APP, [*command.split(), "--admin", NOWHERE])

    assert ran.exit_code == 3
    assert "stratalog start" in ran.stderr and "--admin" in ran.stderr


@pytest.mark.parametrize(
    "arguments", [["nonsense"], ["locate", "t"], ["locate", "t", "x", "0"], ["dump", "f", "-o", "xml"]]
)
def test_wrong_usage_is_exit_code_2(arguments: list[str]) -> None:
    assert CliRunner().invoke(APP, arguments).exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["topics", "create", "t", "--shards", "0"], "'--shards': expected at least 1"),
        (["topics", "create", "t", "--shards", "many"], "'--shards': expected a whole number"),
        (["completion", "fsh"], "'SHELL': 'fsh' is not one of"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_in_plain_words(arguments: list[str], words: str) -> None:
    refused = CliRunner().invoke(APP, arguments)
    assert refused.exit_code == 2 and words in refused.stderr, refused.output


def test_an_admin_address_without_a_port_is_refused() -> None:
    ran = CliRunner().invoke(APP, ["status", "--admin", "localhost"])

    assert ran.exit_code == 2 and "HOST:PORT" in ran.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_for_the_shell(shell: str) -> None:
    ran = CliRunner().invoke(APP, ["completion", shell])

    assert ran.exit_code == 0
    assert "_STRATALOG_COMPLETE" in ran.stdout


def test_the_shell_is_reported_the_commands_and_options() -> None:
    def complete(words: str, position: int) -> list[str]:
        environment = os.environ | {
            "_STRATALOG_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(position),
        }
        ran = subprocess.run(COMMAND, env=environment, capture_output=True, text=True, check=False)
        return ran.stdout.split()

    assert set(complete("stratalog se", 1)) == {"segments", "seal", "settings"}
    assert "create" in complete("stratalog topics ", 2)
    assert "--bucket" in complete("stratalog start --b", 2)


def test_start_refuses_a_misspelt_setting_with_the_nearest_name(tmp_path: Path) -> None:
    command = [*COMMAND, "start", "--data", str(tmp_path / "data"), "--set", "log.segment.byte=1"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)

    assert ran.returncode == 2
    assert "did you mean log.segment.bytes" in ran.stderr
    assert not (tmp_path / "data").exists()


def test_output_into_a_closed_pipe_is_no_error() -> None:
    command = f"{COMMAND[0]} completion bash | true; exit ${{PIPESTATUS[0]}}"
    ran = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)

    assert ran.returncode in (0, 1, 141)
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize("address", ["127.0.0.1:99999", "localhost", "PLAIN://h:1"])
@pytest.mark.parametrize(
    "command",
    [
        "start --data {data}",
        "node start --data {data} --meta http://h:1",
        "meta start --data {data}",
        "operator start --all-namespaces",
    ],
)
def test_an_address_that_is_none_is_refused_with_the_name_of_its_option(
    tmp_path: Path, command: str, address: str
) -> None:
    words = command.format(data=tmp_path / "data").split()
    ran = CliRunner().invoke(APP, [*words, "--listen", address])

    assert ran.exit_code == 2
    assert ran.stderr.startswith(f"stratalog: --listen '{address}': expected HOST:PORT with a port from 0 to 65535")
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(("width", "left_out"), [(100, []), (60, ["place"]), (30, ["place", "size"])])
def test_a_narrow_terminal_loses_whole_columns_not_parts_of_words(width: int, left_out: list[str]) -> None:
    columns = ("topic", "#offset", "#size", "place")
    row = ("flights", "1234567890", "123.4 MiB", "p" * 50)

    kept, (shown,), lost = narrowed(columns, [row], width, ("place", "#size"))

    assert lost == left_out
    assert shown == tuple(cell for name, cell in zip(columns, row, strict=True) if name in kept)
