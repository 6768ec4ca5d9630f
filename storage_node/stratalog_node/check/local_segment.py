"""Checks one segment file and its index block: identity, every CRC, offsets, digest against the seal record.

Blocking; for disk threads and for the command line. Never raises for bad data: it reports findings.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from stratalog.admin_api.models import Finding
from stratalog.admin_api.next_steps import RESTORE_FILE
from stratalog.formats.disk.segment_file import SEGMENT_HEADER_BYTES, check_identity, decode_segment_header
from stratalog.formats.segments.index_block import IndexBlock, decode_index_block
from stratalog.model.errors import Corrupt, NotFound, Unavailable
from stratalog.model.segment import SealRecord, SegmentIdentity
from stratalog_node.check.batch_stream import BatchStream
from stratalog_node.disk.inspection import InspectedFile, inspect_file, read_small_file


@dataclass(slots=True)
class LocalReport:
    """What a segment file holds. `stream` is None when not even its header could be read."""

    path: Path
    identity: SegmentIdentity | None = None
    stream: BatchStream | None = None
    batch_bytes: int = 0
    """Bytes of batches that passed."""
    findings: list[Finding] = field(default_factory=list)

    def error(self, what: str, next_step: str = RESTORE_FILE) -> None:
        self.findings.append(Finding(severity="error", place=str(self.path), what=what, next_step=next_step))

    def warn(self, what: str, next_step: str) -> None:
        self.findings.append(Finding(severity="warning", place=str(self.path), what=what, next_step=next_step))


def check_segment_file(
    path: Path, *, expected: SegmentIdentity | None = None, seal: SealRecord | None = None, is_active: bool = False
) -> LocalReport:
    """Check a segment file. With `is_active` a torn tail is a warning: the next start cuts it. In a file without a
    seal, preallocated room is normal. Behind the end of a sealed file it is harmless: it is never read, and copies
    proven by versions that did not cut it keep it.

    `created_ms` of `expected` is not compared. Raises: NotFound, Unavailable (the disk did not answer).
    """
    report = LocalReport(path)
    with inspect_file(path) as file:
        try:
            identity = decode_segment_header(file.read(0, SEGMENT_HEADER_BYTES), source=file.name)
            report.identity = identity
            if expected is not None:
                check_identity(identity, expected, source=file.name)
        except Corrupt as error:
            report.error(_words(error))
            if report.identity is None:
                return report
            identity = report.identity
        stream = BatchStream(
            source=file.name, base_offset=identity.base_offset, epoch=identity.epoch, position=SEGMENT_HEADER_BYTES
        )
        report.stream = stream
        _walk(file, stream, report, is_active=is_active, seal=seal)
    report.batch_bytes = stream.position - SEGMENT_HEADER_BYTES
    if seal is not None:
        compare_with_seal(report, seal, "the seal record")
    return report


def _walk(
    file: InspectedFile, stream: BatchStream, report: LocalReport, *, is_active: bool, seal: SealRecord | None
) -> None:
    """A node may be writing to the file: it fills preallocated room that was read as zeros here, and cuts it off at the
    seal. So data that is not a batch is read again, as long as that gets further."""
    is_second_look = False
    while True:
        start = stream.position
        try:
            for window in file.windows(start):
                stream.feed(window)
            stream.finish()
            return
        except Corrupt as error:
            fault = error
        file.notice_cut()
        is_at_end = seal is None or stream.next_offset == seal.end_offset
        if is_at_end and file.holds_only_zeros_from(stream.position):
            return
        if is_second_look and stream.position == start:
            break
        is_second_look = True
        stream.rewind()
    left = file.size_bytes - stream.position
    if is_active:
        report.warn(
            f"{_words(fault)}; a torn tail of {left} bytes after offset {stream.next_offset}",
            "nothing to do: the next start cuts it; a kill tears only what was not acknowledged, a power cut also what "
            "a topic without flush.policy=fsync had not flushed",
        )
    else:
        report.error(f"{_words(fault)}; {left} bytes from there on cannot be trusted")


def compare_with_seal(report: LocalReport, seal: SealRecord, whose: str) -> None:
    """Compare what was found with a seal record. Requires: the header could be read."""
    stream = report.stream
    assert stream is not None
    if report.findings and any(finding.severity == "error" for finding in report.findings):
        return  # the damage has been named; that the sums differ too says nothing new
    found = (stream.next_offset, report.batch_bytes, stream.digest)
    wanted = (seal.end_offset, seal.size_bytes, seal.digest)
    for name, is_value, wanted_value in zip(("end offset", "size", "digest"), found, wanted, strict=True):
        if is_value != wanted_value:
            report.error(f"{name} is {_shown(is_value)}, {whose} says {_shown(wanted_value)}")
            return


def check_index_file(path: Path, report: LocalReport, seal: SealRecord | None) -> IndexBlock | None:
    """Check a segment's index block against its file's report and the seal record. None when it cannot be read."""
    try:
        block = decode_index_block(read_small_file(path), source=str(path))
    except Corrupt as error:
        _index_finding(report, path, _words(error))
        return None
    except NotFound:
        return None
    except Unavailable as error:
        _index_finding(report, path, str(error))
        return None
    if report.identity is not None and block.identity.key != report.identity.key:
        _index_finding(report, path, f"belongs to {block.identity.key}, the segment file to {report.identity.key}")
        return block
    for name in ("end_offset", "size_bytes", "digest"):
        if seal is not None and getattr(block.seal, name) != getattr(seal, name):
            words = name.replace("_", " ")
            is_value, wanted = _shown(getattr(block.seal, name)), _shown(getattr(seal, name))
            _index_finding(report, path, f"{words} is {is_value}, the seal record says {wanted}")
    if seal is None and report.stream is not None:
        compare_with_seal(report, block.seal, "its index block")
    return block


def _index_finding(report: LocalReport, path: Path, what: str) -> None:
    step = "move the file aside: it is made again from the segment file at the next start"
    report.findings.append(Finding(severity="error", place=str(path), what=what, next_step=step))


def _words(error: Corrupt) -> str:
    return f"at byte {error.position}: {error.reason}"


def _shown(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)
