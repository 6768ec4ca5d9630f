"""Runs `stratalog cluster start` so that its parts reach each other through the proxies of `support.wires` alone.

    python wired_parts.py cluster WIRES DIR PORT_BASE BUCKET [KEY=VALUE …]

WIRES is a JSON file: address -> the proxy before it. Each part is started through this script as well, which replaces
the addresses that the part connects to by proxies, and keeps those that it listens on.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

_ADDRESS = re.compile(r"127\.0\.0\.1:\d+")
_LISTENS = ("--listen", "--listen-client-urls", "--listen-peer-urls")


def through(words: Sequence[str], wires: Mapping[str, str]) -> list[str]:
    """The command of a part as its plan has it, with proxies."""
    found: list[str] = []
    before = ""
    for word in words:
        listens = before in _LISTENS or word.startswith("metrics.listen=")
        found.append(word if listens else _ADDRESS.sub(lambda address: wires.get(address[0], address[0]), word))
        if before == "--listen":
            found += ["--set", f"advertised.listeners={wires[word]}"]
        before = word
    return found


def _run_cluster(table: str, data: str, port_base: str, bucket: str, settings: list[str]) -> None:
    from stratalog_cli.cluster.directory import ClusterDirectory
    from stratalog_cli.cluster.etcd import find_etcd
    from stratalog_cli.cluster.plan import Asked, Programs, first_plan
    from stratalog_cli.cluster.run import run_cluster

    plan = first_plan(Asked(None, int(port_base), bucket, settings), has_etcd=True)
    itself = [sys.executable, "-P", str(Path(__file__))]
    etcd = Path(f"{table}.etcd")
    etcd.write_text(f'#!/bin/sh\nexec {shlex.join([*itself, "etcd", table, str(find_etcd())])} "$@"\n')
    etcd.chmod(0o755)
    run_cluster(ClusterDirectory(Path(data)), plan, Programs((*itself, "stratalog", table), etcd))


def _main(what: str, table: str, *words: str) -> None:
    if what == "cluster":
        data, port_base, bucket, *settings = words
        _run_cluster(table, data, port_base, bucket, settings)
        return
    command = through(words, json.loads(Path(table).read_text(encoding="utf-8")))
    if what == "etcd":
        # Tests kill processes and not the machine, whose disk is busy with other tests.
        os.execv(command[0], [*command, "--unsafe-no-fsync"])
    from stratalog_cli.entry import main

    sys.argv = ["stratalog", *command]
    main()


if __name__ == "__main__":
    _main(*sys.argv[1:])
