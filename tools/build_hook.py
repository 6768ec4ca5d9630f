"""Builds a wheel whose hot path is compiled: the modules listed here become machine code by mypyc, from their types.

    HATCH_BUILD_HOOK_ENABLE_CUSTOM=1 python -m hatchling build -t wheel

hatchling runs it (pyproject.toml), and by default does not: without a C compiler the wheel holds Python alone, and does
the same, slower. The sources stay in the wheel, for tracebacks. Decision 0028 says what it brings and what it asks.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_OPT_LEVEL: Final = "STRATALOG_COMPILE_OPT_LEVEL"
"""The C compiler's optimization level. Compiling with 0, for a test, takes half the time."""

MODULES: Final = {
    "core/stratalog/event_loop": "fair_turns task_set tls_channel tls_handshakes tls_hello tls_records two_lanes",
    "core/stratalog/kafka": "*",
    "core/stratalog/formats/batches": (
        "batch_bodies batch_headers batch_scan offered_batch record_batch record_times time_window"
    ),
    "core/stratalog/formats/segments": "digest index_points producers",
    "core/stratalog/formats": "envelope fields identity",
    "core/stratalog/formats/bucket": "part",
    "core/stratalog/formats/disk": "segment_file",
    "core/stratalog/machines/leading": (
        "append_refusals chain_events followers in_sync leader_events next_segment producer_table rejected_batches"
        " roll_order sealed_producers segment_leader shard_chain shard_life waiting_batches"
    ),
    "core/stratalog/machines/following": (
        "copy_sources fetch_rounds fetch_session followed_segments follower_events segment_follower"
    ),
    "core/stratalog/machines/reading": "read_policy read_range read_replica read_sources read_window",
    "core/stratalog/machines": "token_bucket",
    "core/stratalog/model": "append batch counting in_order write_steps",
    "core/stratalog/telemetry": "histogram",
    "storage_node/stratalog_node": "activity buffers single_flight turn",
    "storage_node/stratalog_node/disk": (
        "descriptors durable_files ends_in_memory file_slice files journal_file opened_batches preallocation"
        " segment_scan threads write_behind yielding_gil"
    ),
    "storage_node/stratalog_node/replication": (
        "asked_peers copy_queue first_files lag peer peer_connection peer_protocol peer_reads replica"
        " replica_copy stats"
    ),
    "storage_node/stratalog_node/serve": "*",
    "storage_node/stratalog_node/serve/connections": "*",
    "storage_node/stratalog_node/serve/fetching": "*",
    "storage_node/stratalog_node/serve/producing": "*",
    "storage_node/stratalog_node/serve/replicas": "*",
    "storage_node/stratalog_node/shards/copies": (
        "active context followed_copies local_copy local_shard read_back sealed sealed_points"
        " shard_view stats write_gate"
    ),
    "storage_node/stratalog_node/shards/log": (
        "append directory handing_over internal_append mounted shard_log workers"
    ),
    "storage_node/stratalog_node/shards/catalog": "catalog rules wait",
    "storage_node/stratalog_node/shards/read": "epochs other_sources ranges reading replica_reads time_scan",
    "storage_node/stratalog_node/shards/flush": "flusher shard_lookup shared_journal space",
    "storage_node/stratalog_node/tier/uploads": "encoder parts source",
}
"""Folder -> its modules that a request passes on its way. A compiled class has no child that is not compiled, too."""

_TAKEN_AS_IT_IS: Final = (
    "--follow-imports=silent",
    "--ignore-missing-imports",
    "--no-warn-return-any",
    "--no-warn-unused-ignores",
    "--allow-subclassing-any",
    "--allow-untyped-decorators",
    "--allow-any-generics",
)


def compiled_files(top: Path) -> list[Path]:
    """The source files, sorted. Raises: FileNotFoundError."""
    found: list[Path] = []
    for folder, names in MODULES.items():
        paths = [top / folder / f"{name}.py" for name in names.split()]
        if names == "*":
            paths = [path for path in (top / folder).glob("*.py") if path.name != "__init__.py"]
        missing = [str(path) for path in paths if not path.is_file()]
        if missing:
            raise FileNotFoundError(f"to be compiled, and not there: {', '.join(missing)}")
        found += paths
    return sorted(found)


class CompiledHotPath(BuildHookInterface[Any]):
    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="stratalog-compiled-")
        built = _build(Path(self.root), Path(self._folder.name))
        for library in built.rglob("*.so"):
            build_data["force_include"][str(library)] = library.relative_to(built).as_posix()
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        self._folder.cleanup()


def _build(top: Path, work: Path) -> Path:
    from mypyc.build import mypycify
    from setuptools import Distribution
    from setuptools.command.build_ext import build_ext

    before = Path.cwd()
    os.chdir(top)
    try:
        extensions = mypycify(
            # `make lint` checks the types. Here some libraries may be away: what they give is then of any type.
            [*_TAKEN_AS_IT_IS, *map(str, compiled_files(top))],
            opt_level=os.environ.get(_OPT_LEVEL, "2"),
            multi_file=True,
            group_name="stratalog",
            target_dir=str(work / "c"),
        )
        # Elsewhere than the sources: setuptools would read their pyproject.toml, which is hatchling's.
        os.chdir(work)
        command = build_ext(Distribution({"name": "stratalog", "ext_modules": extensions}))
        command.build_lib, command.build_temp = str(work / "lib"), str(work / "objects")
        command.parallel = os.cpu_count()
        command.ensure_finalized()
        command.run()
    finally:
        os.chdir(before)
    return work / "lib"
