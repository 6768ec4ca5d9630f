"""A power cut under a real node: kill it, then take from its segment files and journals what was never flushed.

`PoweredNode` starts the node through `run`, which notes each `fdatasync` and `fsync` (file, its size when the
call began; or directory, the names in it) in a log before the call returns. `cut` plays the disk that lost its cache:
of what lies beyond the last flush it keeps nothing, everything, or some pages, by chance; a file whose name no flush
covers may be gone. RocksDB flushes by itself and is left alone.
"""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path
from typing import Any

from support.node_process import NodeProcess

_PAGE = 4096
_SUFFIXES = {".seg", ".journal"}


class PoweredNode(NodeProcess):
    """A node whose power can be cut."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        here = str(Path(__file__).resolve().parents[1])
        search = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
        super().__init__(*arguments, **options, environment={"PYTHONPATH": search})

    @property
    def flush_log(self) -> Path:
        return self.data_dir.with_name(self.data_dir.name + ".flushes")

    @property
    def boot_file(self) -> Path:
        """Names the boot of the machine."""
        return self.data_dir.with_name(self.data_dir.name + ".boot")

    def command(self, address: str) -> list[str]:
        start = "from support.power_cut import run; run()"
        if not self.boot_file.exists():
            self.boot_file.write_text("boot 0")
        return [sys.executable, "-c", start, str(self.flush_log), str(self.boot_file), *super().command(address)[1:]]

    def cut(self, chance: random.Random) -> dict[str, int]:
        """The node must be dead. Returns: how many bytes were taken from which file."""
        assert not self.is_running
        self.memory_file.unlink(missing_ok=True)
        self.boot_file.write_text(f"boot {self.lives}")
        sizes, names = _read(self.flush_log)
        taken = {}
        for path in sorted(self.data_dir.rglob("*")):
            if path.suffix not in _SUFFIXES:
                continue
            size, flushed = path.stat().st_size, sizes.get(str(path), 0)
            if flushed == 0 and str(path) not in names and chance.random() < 0.5:
                path.unlink()
                taken[path.name] = size
            elif flushed < size:
                taken[path.name] = _lose(path, flushed, size, chance)
        return {name: count for name, count in taken.items() if count}


def _lose(path: Path, flushed: int, size: int, chance: random.Random) -> int:
    match chance.randrange(3):
        case 0:
            os.truncate(path, flushed)
            return size - flushed
        case 1:
            lost = 0
            with path.open("r+b") as file:
                for start in range(flushed, size, _PAGE):
                    end = min((start // _PAGE + 1) * _PAGE, size)
                    if chance.random() < 0.5:
                        file.seek(start)
                        file.write(bytes(end - start))
                        lost += end - start
            return lost
        case _:
            return 0


def _read(log: Path) -> tuple[dict[str, int], set[str]]:
    sizes: dict[str, int] = {}
    names: set[str] = set()
    for line in log.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        if "size" in entry:
            sizes[entry["path"]] = entry["size"]
        else:
            names.update(f"{entry['path']}/{name}" for name in entry["names"])
    return sizes, names


def _record_flushes(log: int) -> None:
    """Replace both calls by ones that tell of themselves."""
    for name in ("fsync", "fdatasync"):
        real = getattr(os, name)

        def flush(fd: int, real: object = real) -> None:
            path = os.readlink(f"/proc/self/fd/{fd}")
            entry: dict[str, object] = {"path": path}
            if os.path.isdir(path):
                entry["names"] = [name for name in os.listdir(fd) if Path(name).suffix in _SUFFIXES]
            elif Path(path).suffix in _SUFFIXES:
                entry["size"] = os.fstat(fd).st_size
            else:
                entry = {}
            real(fd)  # type: ignore[operator]
            if entry:
                os.write(log, json.dumps(entry).encode() + b"\n")

        setattr(os, name, flush)


def run() -> None:
    """In the child process: note flushes, then be the command."""
    from stratalog_cli.entry import main
    from stratalog_node.disk import boot_id

    log, boot_file, *arguments = sys.argv[1:]
    boot_id._BOOT_ID = Path(boot_file)  # type: ignore[misc]
    _record_flushes(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644))
    sys.argv = ["stratalog", *arguments]
    main()
