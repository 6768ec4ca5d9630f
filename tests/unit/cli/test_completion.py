"""Completion in real shells: what a user gets who presses Tab. zsh and fish are skipped where they are missing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

STRATALOG = Path(sys.executable).with_name("stratalog")


def shell(program: str, script: str, home: Path) -> list[str]:
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed here")
    environment = os.environ | {"PATH": f"{STRATALOG.parent}:{os.environ['PATH']}", "XDG_CONFIG_HOME": str(home)}
    flags = {"bash": ["--norc"], "zsh": ["-f"], "fish": ["--no-config"]}[program]
    ran = subprocess.run(
        [program, *flags, "-c", script], env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.split()


def in_bash(line: str, home: Path) -> list[str]:
    """As bash itself asks: the function that is registered for the command, over the words of the line."""
    script = f"""
source <(stratalog completion bash)
registered=$(complete -p stratalog)
[[ $registered =~ -F\\ ([^ ]+) ]] && function=${{BASH_REMATCH[1]}}
read -ra COMP_WORDS <<< {line!r}
[[ {line!r} == *" " ]] && COMP_WORDS+=("")
COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
COMP_LINE={line!r}
COMP_POINT=${{#COMP_LINE}}
"$function" stratalog "${{COMP_WORDS[COMP_CWORD]}}" ""
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    return shell("bash", script, home)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("stratalog gro", {"groups"}),
        ("stratalog groups ", {"list", "describe", "reset"}),
        ("stratalog topics describe --a", {"--all", "--admin"}),
        ("stratalog settings segment.b", {"segment.bytes"}),
        ("stratalog context use pr", {"prod", "prev"}),
    ],
)
def test_bash_completes_commands_options_settings_and_contexts(line: str, expected: set[str], tmp_path: Path) -> None:
    for name in ("prod", "prev", "test"):
        add = [str(STRATALOG), "context", "add", name, "--bootstrap", "127.0.0.1:1"]
        subprocess.run(add, env=os.environ | {"XDG_CONFIG_HOME": str(tmp_path)}, check=True, capture_output=True)

    assert set(in_bash(line, tmp_path)) == expected


@pytest.mark.parametrize("program", ["zsh", "fish"])
def test_other_shells_take_the_script(program: str, tmp_path: Path) -> None:
    load = {"zsh": "autoload -Uz compinit && compinit -u && ", "fish": ""}[program]
    source = {"zsh": "source <(stratalog completion zsh)", "fish": "stratalog completion fish | source"}[program]
    known = {"zsh": 'print -r -- "$_comps[stratalog]"', "fish": "complete -C 'stratalog gro'"}[program]

    told = shell(program, f"{load}{source}; {known}", tmp_path)
    assert told and told[0] in {"_stratalog_completion", "groups"}
