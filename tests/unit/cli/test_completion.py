"""Completion in real shells: what a user gets who presses Tab. zsh and fish are skipped where they are missing."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

STRATALOG = Path(sys.executable).with_name("stratalog")


def shell(program: str, script: str, home: Path) -> str:
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed here")
    environment = os.environ | {"PATH": f"{STRATALOG.parent}:{os.environ['PATH']}", "XDG_CONFIG_HOME": str(home)}
    flags = {"bash": ["--norc"], "zsh": ["-f"], "fish": ["--no-config"]}[program]
    ran = subprocess.run(
        [program, *flags, "-c", script], env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


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
    return shell("bash", script, home).split()


IN_ZSH = r"""
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell "source ${(q)PREPARE}"
zpty -r shell screen '*\[\[ready\]\]*'
zpty -w -n shell "$LINE"$'\t'
zpty -r shell screen '*\[\[offered:*\]\]*'
print -r -- "$screen"
"""
"""A terminal with an interactive zsh in it, into which the line is typed, and Tab."""

PREPARE_ZSH = r"""
PS1= RPS1=
autoload -Uz compinit && compinit -u -D
source <(stratalog completion zsh)
offered=()
compadd() {
  local -a matched
  builtin compadd -O matched "$@"
  offered+=($matched)
  builtin compadd "$@"
}
zle -C asked complete-word _main_complete
press-tab() { offered=(); zle asked; print -rn -- "[[offered:${(j:,:)offered}]]" }
zle -N press-tab
bindkey '^I' press-tab
print -n "[[ready]]"
"""
"""Tab completes as it always does, and then prints what zsh found to offer."""


def in_zsh(line: str, home: Path) -> list[str]:
    prepare = home / "prepare.zsh"
    prepare.write_text(PREPARE_ZSH, encoding="utf-8")
    screen = shell("zsh", f"PREPARE={shlex.quote(str(prepare))} LINE={shlex.quote(line)}\n{IN_ZSH}", home)
    return screen.rpartition("[[offered:")[2].partition("]]")[0].split(",")


def in_fish(line: str, home: Path) -> list[str]:
    """fish says itself what Tab would offer: a line each, a description behind a tabulator."""
    told = shell("fish", f"stratalog completion fish | source; complete -C {shlex.quote(line)}", home)
    return [one.partition("\t")[0] for one in told.splitlines()]


LINES = {
    "stratalog gro": {"groups"},
    "stratalog groups ": {"list", "describe", "reset", "delete", "delete-offsets"},
    "stratalog topics alter t --set remote.read.pol": {"remote.read.policy="},
    "stratalog topics alter t --unset remote.read.pol": {"remote.read.policy"},
    "stratalog cluster start --set disk.res": {"disk.reserve.bytes="},
    "stratalog topics describe --a": {"--all", "--admin"},
    "stratalog settings segment.b": {"segment.bytes"},
    "stratalog context use pr": {"prod", "prev"},
}
ON_EVERY_SHELL = ("stratalog topics alter t --set remote.read.pol", "stratalog context use pr")
"""What shells take differently: a `=` at the end, and names that come from a file. bash is asked for all lines."""


@pytest.mark.parametrize(
    ("offered", "line"),
    [
        *(pytest.param(in_bash, line, id=f"bash-{line}") for line in LINES),
        *(
            pytest.param(offered, line, id=f"{name}-{line}", marks=pytest.mark.other_shells)
            for name, offered in {"zsh": in_zsh, "fish": in_fish}.items()
            for line in ON_EVERY_SHELL
        ),
    ],
)
def test_tab_completes_commands_options_settings_and_contexts(
    offered: Callable[[str, Path], list[str]], line: str, tmp_path: Path
) -> None:
    for name in ("prod", "prev", "test") if "context" in line else ():
        add = [str(STRATALOG), "context", "add", name, "--bootstrap", "127.0.0.1:1"]
        subprocess.run(add, env=os.environ | {"XDG_CONFIG_HOME": str(tmp_path)}, check=True, capture_output=True)

    assert set(offered(line, tmp_path)) == LINES[line]
