"""Checks a node's data directory without a running node: identities, CRCs, digests, what is missing or unexplained.

Reads only. With the embedded meta store beside it every file is compared with its seal record; without one, with its
index block. A node may be running: what it appends meanwhile is not looked at.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from stratalog.admin_api.next_steps import CHECK_VOLUME
from stratalog.formats.bucket.object_names import parse_index_file_name, parse_segment_file_name
from stratalog.formats.disk.journal import JOURNAL_HEADER_BYTES, decode_journal_header
from stratalog.machines.restart.missing_copy import RESTORE_VOLUME, judge_missing
from stratalog.machines.restart.shard_restart import written_end
from stratalog.model.errors import Corrupt, NotFound, StratalogError
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.segment import Segment, SegmentState
from stratalog_cli.doctor.examination import Examination, Metadata
from stratalog_meta.stores.inspection import read_stored_records
from stratalog_node.check.local_segment import LocalReport, check_index_file, check_segment_file
from stratalog_node.disk.checkpoints import DAMAGED_SUFFIX, flushed_ends
from stratalog_node.disk.further_directories import attach_for_reading
from stratalog_node.disk.inspection import inspect_file, read_small_file
from stratalog_node.disk.layout import NodeLayout

_LOOK = "inspect it with `stratalog dump`; nothing reads it, so it can be moved away once you know what it is"
_VOLUME = RESTORE_VOLUME
_NO_META = "none for a node of a cluster: the meta service has them; after `stratalog start`, restore it from a backup"
_COMES_BACK = (
    "start the node with the --bucket that has it: what is missing comes back from there before the shard serves"
)
_CHECKPOINTS = (
    "check the disk; the node sets the store aside at its next start, and reads unsealed segments from their start. "
    "Whether a segment lost its end cannot be checked without it"
)
_ATTACH = "mount its disk where it was, then run this again"
_SET_ASIDE = "check the disk; remove it once nothing of it is wanted any more"


def is_data_directory(path: Path) -> bool:
    return any((path / name).exists() for name in ("node", "meta", "node.json", "segments"))


def read_metadata(path: Path, seen: Examination) -> Metadata | None:
    """The embedded meta store's records, None when there is none or it cannot be read (which is a finding)."""
    meta = path / "meta"
    try:
        return Metadata(read_stored_records(meta))
    except NotFound:
        if meta.exists():
            seen.error(str(meta), "no metadata store in it", _VOLUME)
        else:
            is_data = (path / "node").is_dir()
            seen.warn(
                str(meta),
                "not there: files are compared with their index blocks only",
                _NO_META if is_data else "give the directory of --data",
            )
    except Corrupt as error:
        seen.error(str(meta), str(error), "keep what is there aside, and restore the directory from a backup")
    except StratalogError as error:
        seen.error(str(meta), str(error), "check the permissions and the volume, then run this again")
    return None


def check_directory(path: Path, metadata: Metadata | None, seen: Examination) -> None:
    root = path / "node" if (path / "node").is_dir() else path
    layout = NodeLayout(root)
    absent = _attach_further(layout, seen)
    node_id = _check_node_file(layout, metadata, seen)
    flushed = _read_checkpoints(layout, seen)  # before the files: what a running node flushes later is in them
    found = layout.list_shards()
    for shard, keys in sorted(found.items(), key=lambda item: (str(item[0].topic_id), item[0].shard)):
        _check_shard(layout, shard, keys, metadata, flushed, seen)
    for place in sorted(_foreign_files(layout)):
        seen.warn(str(place), "not a file of Stratalog, or an index block without its segment", _LOOK)
    if metadata is not None:
        on_disk = {key for keys in found.values() for key in keys}
        _find_missing(layout, metadata, node_id, on_disk, flushed, seen, is_away=absent)
    _check_journals(layout, seen)


def _attach_further(layout: NodeLayout, seen: Examination) -> bool:
    """Returns: whether sealed copies may be in a directory that cannot be read."""
    try:
        troubles = attach_for_reading(layout)
    except StratalogError as error:
        seen.error(str(layout.directories_file), str(error), "restore it from a backup")
        return True
    for path, why in troubles.items():
        seen.warn(path, f"a data directory of this node cannot be read: {why}", _ATTACH)
    return bool(troubles)


def _read_checkpoints(layout: NodeLayout, seen: Examination) -> dict[SegmentKey, int]:
    place = layout.checkpoints

    def report(what: str) -> None:
        seen.error(str(place), what, _CHECKPOINTS)

    kept = place.with_name(place.name + DAMAGED_SUFFIX)
    if kept.exists():
        seen.hint(str(kept), "a damaged checkpoint store that the node set aside", _SET_ASIDE)
    if place.is_dir() and any(place.iterdir()) and not (place / "CURRENT").is_file():
        report("the checkpoint store has no CURRENT file, without which nothing in it can be read")
    return flushed_ends(place, report)


def _check_node_file(layout: NodeLayout, metadata: Metadata | None, seen: Examination) -> int | None:
    """Returns the node's id if the file tells it."""
    path = layout.node_file
    try:
        content = json.loads(read_small_file(path))
        node_id = int(content["node_id"])
    except NotFound:
        seen.error(str(path), "the file that names the node is missing", _VOLUME)
        return None
    except (StratalogError, ValueError, KeyError, TypeError) as error:
        seen.error(str(path), f"cannot be read: {error}", "restore it from a backup: it names the node and its disk")
        return None
    cluster = content.get("cluster_id")
    header = metadata.header if metadata is not None else None
    if metadata is not None and header is None:
        seen.error(str(path), "names a cluster, but the metadata store beside it is empty", _VOLUME)
    elif header is not None and cluster not in (None, header.cluster_id):
        what = f"belongs to cluster {cluster}, the metadata to {header.cluster_id}"
        seen.error(str(path), what, "do not start a node here: two clusters' directories were mixed up")
    return node_id


def _check_shard(
    layout: NodeLayout,
    shard: ShardKey,
    keys: list[SegmentKey],
    metadata: Metadata | None,
    flushed: Mapping[SegmentKey, int],
    seen: Examination,
) -> None:
    before: LocalReport | None = None
    for key in keys:
        path = layout.segment(key)
        seen.step(str(path))
        known = metadata.segments.get(key) if metadata is not None else None
        if metadata is not None and known is None and _is_unexplained(key, keys, metadata, path, seen):
            continue
        is_growing = known.seal is None if known is not None else key is keys[-1]
        try:
            report = check_segment_file(
                path,
                expected=metadata.identity(key) if metadata is not None else None,
                seal=known.seal if known is not None else None,
                is_active=is_growing,
            )
        except StratalogError as error:
            seen.error(str(path), str(error), CHECK_VOLUME)
            before = None
            continue
        _check_name(report, key)
        index = layout.index(key)
        check_index_file(index, report, known.seal if known is not None else None)
        _check_chain(before, report, key, known, seen)
        _check_known_end(report, known, flushed, seen)
        seen.findings += report.findings
        seen.segments += 1
        seen.batch_bytes += report.batch_bytes
        before = report
    del shard


def _is_unexplained(key: SegmentKey, keys: list[SegmentKey], metadata: Metadata, path: Path, seen: Examination) -> bool:
    """A file that metadata does not know. Those of the shard's next epochs are rolls that were not confirmed yet, or
    newer than metadata that were put back: they are data, and a start confirms them."""
    last = metadata.last_epoch(key.shard_key)
    if last >= 0 and set(range(last + 1, key.epoch + 1)) <= {other.epoch for other in keys}:
        return False
    seen.warn(str(path), "metadata knows no such segment", _LOOK)
    return True


def _check_name(report: LocalReport, key: SegmentKey) -> None:
    if report.identity is not None and report.identity.key != key:
        report.error(f"the file says it is {report.identity.key}, its name says {key}", "give the file its right name")


def _check_chain(
    before: LocalReport | None, report: LocalReport, key: SegmentKey, known: Segment | None, seen: Examination
) -> None:
    """Neighbours on disk must meet: one's end offset is the next one's base offset."""
    if before is None or before.stream is None or before.identity is None or before.identity.epoch + 1 != key.epoch:
        return  # what lies between was freed or is elsewhere; metadata says so, and `missing` checks it
    end = before.stream.next_offset
    if end == key.base_offset or any(finding.severity == "error" for finding in before.findings):
        return
    what = f"begins at offset {key.base_offset}, the segment before it ends at {end}"
    step = "do not start the node; copy the directory, then restore the earlier file from the object store or a backup"
    seen.error(str(report.path), what, step)
    del known


def _check_known_end(
    report: LocalReport, known: Segment | None, flushed: Mapping[SegmentKey, int], seen: Examination
) -> None:
    """Zeros at the end are room ahead, unless metadata or a checkpoint know that something was written there."""
    if known is None or known.seal is not None or report.stream is None:
        return
    known_end = _known_end_of(known, flushed)
    end = report.stream.next_offset
    if end >= known_end:
        return
    if known.remote.commit_offset >= known_end:
        report.findings = [one for one in report.findings if one.severity == "error"]  # a torn tail is the same finding
    _say_is_short(str(report.path), f"its batches end at offset {end}", known, known_end, seen)


def _say_is_short(place: str, how: str, known: Segment, known_end: int, seen: Examination) -> None:
    what = f"{how}, but {known_end} is known to have been written"
    if known.remote.commit_offset < known_end:
        seen.error(place, what, _VOLUME)
    else:
        seen.warn(place, f"{what}; the object store has the rest", _COMES_BACK)


def _known_end_of(segment: Segment, flushed: Mapping[SegmentKey, int]) -> int:
    """The end that a start would expect, without regard to the log start."""
    return written_end(segment, seen_end=flushed.get(segment.key, -1), log_start_offset=-1)


def _foreign_files(layout: NodeLayout) -> Iterator[Path]:
    if not layout.segments.is_dir():
        return
    for path in layout.segments.rglob("*"):
        if not path.is_file() or parse_segment_file_name(path.name) is not None or path.parent == layout.spares:
            continue
        if parse_index_file_name(path.name) is None or not path.with_suffix(".seg").exists():
            yield path


def _find_missing(
    layout: NodeLayout,
    metadata: Metadata,
    node_id: int | None,
    on_disk: set[SegmentKey],
    flushed: Mapping[SegmentKey, int],
    seen: Examination,
    *,
    is_away: bool,
) -> None:
    """`is_away`: a directory that may have sealed copies cannot be read."""
    for key, segment in metadata.segments.items():
        if key in on_disk or segment.state is SegmentState.DELETED:
            continue
        if segment.state is SegmentState.ACTIVE:
            # Its file is made with its first batch.
            if node_id == segment.leader and (known_end := _known_end_of(segment, flushed)) > segment.base_offset:
                _say_is_short(str(layout.segment(key)), "its file is gone", segment, known_end, seen)
            continue
        is_here = node_id in segment.local_nodes if segment.seal is not None else node_id == segment.leader
        if node_id is None or not is_here or segment.end_offset == segment.base_offset:
            continue
        if is_away and segment.seal is not None:
            seen.warn(str(layout.segment(key)), "not here; it may be in the directory that cannot be read", _ATTACH)
            continue
        topic = metadata.topics.get(key.topic_id)
        may_read = topic is None or metadata.bucket.of(topic)
        verdict = judge_missing(segment, node_id, has_store=True, may_read=may_read)
        say = seen.error if verdict.is_error else seen.warn
        say(str(layout.segment(key)), verdict.what, verdict.next_step)


def _check_journals(layout: NodeLayout, seen: Examination) -> None:
    """Only that a journal can be used: its tail is whatever an earlier life left there."""
    if not layout.journal.is_dir():
        return
    for path in sorted(layout.journal.iterdir()):
        try:
            with inspect_file(path) as file:
                if file.size_bytes:
                    decode_journal_header(file.read(0, JOURNAL_HEADER_BYTES), source=file.name)
        except Corrupt as error:
            what = f"at byte {error.position}: {error.reason}"
            seen.error(str(path), what, "keep a copy: the last acknowledged batches of fsync topics may be only in it")
        except StratalogError as error:
            seen.error(str(path), str(error), CHECK_VOLUME)
