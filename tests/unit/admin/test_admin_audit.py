"""Whatever the admin API is asked to change is in the node's audit log, however it ended."""

from __future__ import annotations

from pathlib import Path

from support.audit_lines import KeptAudit
from unit.admin.test_admin_slices import new_meta, pages_of

JSON = {"Content-Type": "application/json"}


async def test_each_change_by_http_has_a_line_and_questions_have_none(tmp_path: Path) -> None:
    audit = KeptAudit()
    async with new_meta() as meta, pages_of(meta, tmp_path, audit) as pages:
        for method, path, body in (
            ("POST", "/v1/topics", b'{"name":"orders","settings":{"retention.ms":"1"}}'),
            ("POST", "/v1/topics", b'{"name":"trial","validate_only":true}'),
            ("POST", "/v1/topics", b'{"name":"bad","settings":{"password":"hunter2"}}'),
            ("POST", "/v1/topics", b"not json"),
            ("PATCH", "/v1/topics/nope", b'{"set":{"retention.ms":"2"},"unset":["x"]}'),
            ("DELETE", "/v1/topics/nope", b""),
            ("POST", "/v1/seal", b'{"topic":"nope"}'),
            ("POST", "/v1/mounts", b'{"name":"m","topics":["nope"]}'),
            ("POST", "/v1/mounts/move", b'{"name":"m"}'),
            ("POST", "/v1/mounts/end", b'{"name":"m"}'),
            ("GET", "/v1/topics", b""),
            ("GET", "/v1/status", b""),
        ):
            async with pages.http.request(method, path, data=body, headers=JSON) as answer:
                await answer.read()
    lines = audit.written()
    assert [(one["action"], one["resource"], one["outcome"], one["error"]) for one in lines] == [
        ("CreateTopic", "orders", "done", None),
        ("CreateTopic", "bad", "failed", "InvalidRequest"),
        ("AlterTopic", "nope", "failed", "NotFound"),
        ("DeleteTopic", "nope", "failed", "NotFound"),
        ("SealShards", "nope", "failed", "NotFound"),
        ("CreateMount", "m", "failed", "InvalidRequest"),
        ("MoveMount", "m", "failed", "NotFound"),
        ("EndMount", "m", "done", None),
    ]
    assert "hunter2" not in repr(lines)
    assert {one["address"] for one in lines} == {"127.0.0.1"}
