"""`stratalog doctor BUCKET` on whole and on damaged buckets, with and without the metadata."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest
from typer.testing import CliRunner

from stratalog.formats.bucket.bundle import BundleHeader, BundleMember, encode_bundle
from stratalog.formats.bucket.claim import Claim, encode_claim
from stratalog.formats.bucket.manifest import decode_manifest
from stratalog.formats.bucket.object_names import ObjectNames
from stratalog.formats.segments.digest import EMPTY_DIGEST
from stratalog.objects import open_store
from stratalog_cli.entry import build_app
from stratalog_node.check.remote_segment import RemoteReport, check_what_manifest_names
from support.stored_cluster import (
    CLUSTER_ID,
    NODE_ID,
    StoredCluster,
    batches_of,
    identity_of,
    part_of,
    segment_key,
    store_cluster,
)

APP = build_app()


@pytest.fixture
def cluster(tmp_path: Path) -> StoredCluster:
    return store_cluster(tmp_path)


def doctor(*arguments: str) -> tuple[int, list[dict[str, str]]]:
    ran = CliRunner().invoke(APP, ["doctor", *arguments, "--output", "json"])
    assert ran.exit_code in (0, 1), ran.output
    return ran.exit_code, [finding for seen in json.loads(ran.stdout) for finding in seen["findings"]]


def with_metadata(cluster: StoredCluster) -> tuple[int, list[dict[str, str]]]:
    return doctor(str(cluster.data), "--bucket", str(cluster.bucket))


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x40
    path.write_bytes(data)


def test_a_whole_bucket_is_clean_but_for_what_is_still_to_come(cluster: StoredCluster) -> None:
    assert doctor(str(cluster.bucket)) == (0, [])
    assert doctor(f"file://{cluster.bucket}") == (0, [])
    assert with_metadata(cluster) == (0, [])


DAMAGES: dict[str, tuple[Callable[[StoredCluster], object], str]] = {
    "a flipped bit in a chunk": (lambda c: flip(c.object("chunk"), 700), "CRC"),
    "a flipped bit in a bundle": (lambda c: flip(c.object("bundle0"), 800), "CRC"),
    "a flipped bit in a bundle's trailer": (lambda c: flip(c.object("bundle1"), -5), "CRC"),
    "a flipped bit in an index": (lambda c: flip(c.object("index"), 100), "CRC"),
    "a flipped bit in a manifest": (lambda c: flip(c.object("manifest"), 100), "CRC"),
    "a cut chunk": (lambda c: c.object("chunk").write_bytes(c.object("chunk").read_bytes()[:-1]), "part"),
    "an empty object": (lambda c: c.object("chunk").write_bytes(b""), "cut short"),
    "a chunk missing that the manifest names": (lambda c: c.object("chunk").unlink(), "is missing"),
    "a bundle missing that the manifest names": (lambda c: c.object("bundle0").unlink(), "is missing"),
    "an index missing that the manifest names": (lambda c: c.object("index").unlink(), "index is missing"),
    "a chunk under another range's name": (
        lambda c: c.object("chunk").rename(str(c.object("chunk")).replace(f"{10:020d}.", f"{20:020d}.")),
        "part has end offset 10, expected 20",
    ),
    "a bundle under another bundle's name": (
        lambda c: c.object("bundle1").write_bytes(c.object("bundle0").read_bytes()),
        "bundle has number 0, expected 1",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_found_and_named_without_metadata(cluster: StoredCluster, damage: str) -> None:
    apply, words = DAMAGES[damage]
    apply(cluster)

    code, findings = doctor(str(cluster.bucket))

    errors = [finding for finding in findings if finding["severity"] == "error"]
    assert code == 1
    assert any(words in finding["what"] for finding in errors), errors
    assert all(finding["next_step"] and finding["place"] for finding in findings)


@pytest.mark.parametrize("damage", ["a flipped bit in a chunk", "a chunk missing that the manifest names"])
def test_a_node_that_verifies_reports_the_same_next_step(cluster: StoredCluster, damage: str) -> None:
    manifest = decode_manifest(cluster.object("manifest").read_bytes(), source="manifest")
    apply, _ = DAMAGES[damage]
    apply(cluster)

    async def verify() -> RemoteReport:
        store = open_store(str(cluster.bucket))
        report = RemoteReport()
        await check_what_manifest_names(store, manifest, report)
        await store.close()
        return report

    verified = {finding.next_step for finding in asyncio.run(verify()).findings}
    _, findings = doctor(str(cluster.bucket))
    assert len(verified) == 1
    assert {finding["next_step"] for finding in findings if finding["severity"] == "error"} == verified


@pytest.mark.parametrize("name", ["manifest", "bundle1"])
def test_what_only_metadata_names_is_missed_with_metadata(cluster: StoredCluster, name: str) -> None:
    cluster.object(name).unlink()

    code, findings = with_metadata(cluster)

    assert code == 1
    assert any(f"{cluster.keys[name]}" in f["place"] and "metadata names it" in f["what"] for f in findings)


def test_another_attempt_of_a_range_is_unexplained_but_no_error(cluster: StoredCluster) -> None:
    again = str(cluster.object("chunk")).replace(".1.1.1.chunk", ".1.1.2.chunk")
    pieces, _ = part_of(identity_of(0, 0), batches_of(0, 0, 10), EMPTY_DIGEST, attempt=2)
    Path(again).write_bytes(b"".join(pieces))

    code, findings = doctor(str(cluster.bucket))

    assert code == 0
    assert [finding["severity"] for finding in findings] == ["warning"]
    assert "unexplained" in findings[0]["what"] and ".1.1.2.chunk" in findings[0]["place"]


def test_what_a_whole_segment_left_in_a_bundle_is_no_finding(cluster: StoredCluster) -> None:
    key = ObjectNames("", CLUSTER_ID).bundle(node_id=NODE_ID, lock_epoch=1, number=2, attempt=1)
    identity, batches = identity_of(0, 0), batches_of(0, 0, 30)
    _, digest = part_of(identity, batches[:2], EMPTY_DIGEST)
    rest, _ = part_of(identity, batches[2:], digest)
    bundle = BundleHeader(CLUSTER_ID, NODE_ID, 1, 2, 1)
    encoded, _ = encode_bundle(bundle, [BundleMember(identity, 10, 30, rest)])
    (cluster.bucket / key).write_bytes(b"".join(encoded))

    assert doctor(str(cluster.bucket)) == (0, [])


def test_a_damaged_part_does_not_make_the_index_of_its_manifest_unexplained(cluster: StoredCluster) -> None:
    flip(cluster.object("chunk"), 600)

    code, findings = doctor(str(cluster.bucket))

    assert code == 1
    assert [finding["what"] for finding in findings if "unexplained" in finding["what"]] == []


def test_foreign_objects_are_counted_not_listed(cluster: StoredCluster) -> None:
    for number in range(100):
        (cluster.bucket / f"holiday-{number}.jpg").write_bytes(b"x")

    code, findings = doctor(str(cluster.bucket))

    assert (code, len(findings)) == (0, 1)
    assert "100 objects that Stratalog did not write, such as holiday-" in findings[0]["what"]


def test_parts_without_a_manifest_are_followed_as_far_as_they_reach(cluster: StoredCluster) -> None:
    cluster.object("manifest").unlink()
    cluster.object("index").unlink()

    code, findings = doctor(str(cluster.bucket))

    assert (code, findings) == (0, [])


def test_a_gap_between_parts_is_reported(cluster: StoredCluster) -> None:
    for name in ("manifest", "index", "chunk"):
        cluster.object(name).unlink()

    code, findings = doctor(str(cluster.bucket))

    assert code == 0, "without metadata the segment may have been deleted"
    assert any("gap: offsets [0, 10)" in finding["what"] for finding in findings)
    code, findings = with_metadata(cluster)
    assert code == 1
    assert any("gap: offsets [0, 10)" in f["what"] for f in findings if f["severity"] == "error")


def test_a_part_that_does_not_continue_from_the_one_before_is_found(cluster: StoredCluster) -> None:
    """Whole by itself, at the right offsets, but not made of the segment's batches."""
    from stratalog.formats.bucket.object_names import ObjectNames

    pieces, _ = part_of(identity_of(1, 30), batches_of(1, 40, 50), b"\x07" * 16, attempt=3)
    key = ObjectNames("", "c1").chunk(segment_key(1), 40, 50, node_id=1, lock_epoch=1, attempt=3)
    path = cluster.bucket / key
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(pieces))

    code, findings = doctor(str(cluster.bucket))

    assert code == 1
    assert any("does not continue from the digest before it" in finding["what"] for finding in findings)


def test_foreign_objects_are_pointed_out_and_left_alone(cluster: StoredCluster) -> None:
    (cluster.bucket / "readme.txt").write_text("mine")
    (cluster.object("chunk").parent / "notes.txt").write_text("mine")

    code, findings = doctor(str(cluster.bucket))

    assert code == 0
    assert {finding["what"] for finding in findings} == {
        "1 object that Stratalog did not write, such as readme.txt",
        "not a name that Stratalog uses",
    }


def test_a_claim_by_a_life_that_metadata_does_not_know_is_an_error_with_the_next_step(cluster: StoredCluster) -> None:
    stranger = Claim(CLUSTER_ID, NODE_ID, "copied disk", 2, UUID(int=8))
    cluster.object("claim").with_name("2.claim").write_bytes(encode_claim(stranger))
    code, findings = with_metadata(cluster)
    assert code == 1
    (found,) = findings
    assert "claimed by a life that this metadata does not know" in found["what"]
    assert "stop this one permanently" in found["next_step"]
    assert doctor(str(cluster.bucket)) == (0, []), "only metadata can tell"


def test_a_claim_under_another_name_is_found(cluster: StoredCluster) -> None:
    cluster.object("claim").rename(cluster.object("claim").with_name("2.claim"))
    code, findings = doctor(str(cluster.bucket))
    (found,) = findings
    assert code == 1 and "claim has lock epoch 1, expected 2" in found["what"]
    assert "verify --repair" not in found["what"], "it restores segments, not claims"
    assert "then delete it" in found["next_step"]


def test_an_empty_bucket_says_to_check_the_url(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()

    code, findings = doctor(f"file://{tmp_path / 'empty'}")

    assert code == 0 and "check the URL" in findings[0]["next_step"]
    assert findings[0]["severity"] == "hint", "a new bucket has none either"


def test_a_bucket_goes_only_with_a_data_directory(cluster: StoredCluster) -> None:
    ran = CliRunner().invoke(APP, ["doctor", str(cluster.bucket), "--bucket", str(cluster.bucket)])

    assert ran.exit_code == 2
    assert "goes with a data directory" in ran.output
