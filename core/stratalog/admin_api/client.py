"""A blocking client of a node's admin API, for the command line. Standard library only: it costs nothing to import.

Raises what the node raised, or Unavailable when no node answers.
"""

from __future__ import annotations

import base64
import http.client
import socket
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from stratalog.admin_api.cuts import Confirmed, CutRequest, Held, HoldRequest, Released
from stratalog.admin_api.errors import error_from_body, reported_error
from stratalog.admin_api.find import FindAnswer
from stratalog.admin_api.models import (
    AlterTopic,
    CreateTopic,
    Location,
    NodeStatus,
    SealedShard,
    SealRequest,
    SegmentInfo,
    TopicDetail,
    TopicInfo,
    VerifyDone,
    VerifyRequest,
    VerifySegment,
    VerifyStart,
    read_verify_line,
)
from stratalog.admin_api.mounts import CreateMountRequest, EndMountRequest, MountInfo, MoveMountRequest
from stratalog.admin_api.rolls import RollElsewhereRequest, RollingElsewhere
from stratalog.model.errors import InvalidRequest, OutcomeUnknown, Unavailable, WrongServer
from stratalog.model.tokens import Token, bearer
from stratalog.tls.outgoing import ClientTls, why_no_tls

M = TypeVar("M", bound=BaseModel)

DEFAULT_ADDRESS = "127.0.0.1:9644"

_LONGEST_PATH = 12 << 10
"""Nodes refuse a request with a head above 16 KiB (`telemetry/http_limits.py`), other headers included."""


class AdminClient:
    """Speaks to one node at HOST:PORT (or http://HOST:PORT, https://HOST:PORT)."""

    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        *,
        timeout_s: float = 30.0,
        token: Token | None = None,
        tls: ClientTls | None = None,
    ) -> None:
        """`token` is shown to it. `tls` is spoken with https://; by default the authorities of the system are trusted,
        and no certificate is shown."""
        base = address.rstrip("/")
        self.base = base if base.startswith(("http://", "https://")) else f"http://{base}"
        try:
            has_port = urllib.parse.urlsplit(self.base).port is not None
        except ValueError:
            has_port = False
        if not has_port:
            raise InvalidRequest(f"admin address {address!r}: expected HOST:PORT, such as {DEFAULT_ADDRESS}")
        self._timeout_s = timeout_s
        self._token = token
        # The environment's proxy is for the world outside, never for our own node.
        handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
        if tls is not None and self.base.startswith("https://"):
            handlers.append(urllib.request.HTTPSHandler(context=tls()))
        self._opener = urllib.request.build_opener(*handlers)

    def status(self) -> NodeStatus:
        return self._read(NodeStatus, "GET", "/v1/status")

    def topics(self) -> list[TopicInfo]:
        return self._read_list(TopicInfo, "GET", "/v1/topics")

    def topic(self, name: str) -> TopicDetail:
        return self._read(TopicDetail, "GET", _topic_path(name))

    def create_topic(self, request: CreateTopic) -> TopicInfo:
        return self._read(TopicInfo, "POST", "/v1/topics", request)

    def alter_topic(self, name: str, request: AlterTopic) -> TopicInfo:
        return self._read(TopicInfo, "PATCH", _topic_path(name), request)

    def delete_topic(self, name: str) -> None:
        self._call("DELETE", _topic_path(name))

    def find(
        self,
        topic: str,
        key: bytes,
        *,
        shards: Iterable[int] = (),
        limit: int = 100,
        cursor: str | None = None,
        is_scan: bool = False,
    ) -> FindAnswer:
        """The first records of a key, or those behind a cursor.

        Raises: InvalidRequest for a key that is too long for the request's first line."""
        query: list[tuple[str, object]] = [("key_base64", base64.b64encode(key).decode()), ("limit", limit)]
        query += [("shard", shard) for shard in shards]
        query += [("cursor", cursor)] if cursor is not None else []
        query += [("scan", "true")] if is_scan else []
        path = f"{_topic_path(topic)}/find?{urllib.parse.urlencode(query)}"
        if len(path) > _LONGEST_PATH:
            raise InvalidRequest(
                f"a key of {len(key)} bytes is too long to ask a node for: search from here, with --bucket URL or with "
                "--cold-only"
            )
        return self._read(FindAnswer, "GET", path)

    def segments(self, topic: str | None = None, shard: int | None = None) -> list[SegmentInfo]:
        query = {name: value for name, value in (("topic", topic), ("shard", shard)) if value is not None}
        return self._read_list(SegmentInfo, "GET", "/v1/segments?" + urllib.parse.urlencode(query))

    def locate(self, topic: str, shard: int, offset: int) -> Location:
        query = urllib.parse.urlencode({"topic": topic, "shard": shard, "offset": offset})
        return self._read(Location, "GET", "/v1/locate?" + query)

    def seal(self, request: SealRequest) -> list[SealedShard]:
        return self._read_list(SealedShard, "POST", "/v1/seal", request)

    def roll_elsewhere(self, request: RollElsewhereRequest) -> RollingElsewhere:
        return self._read(RollingElsewhere, "POST", "/v1/roll-elsewhere", request)

    def mounts(self) -> list[MountInfo]:
        return self._read_list(MountInfo, "GET", "/v1/mounts")

    def create_mount(self, request: CreateMountRequest) -> MountInfo:
        return self._read(MountInfo, "POST", "/v1/mounts", request)

    def move_mount(self, request: MoveMountRequest) -> MountInfo:
        return self._read(MountInfo, "POST", "/v1/mounts/move", request)

    def end_mount(self, request: EndMountRequest) -> None:
        self._call("POST", "/v1/mounts/end", request)

    def hold_cut(self, request: HoldRequest) -> Held:
        return self._read(Held, "POST", "/v1/cuts/hold", request)

    def release_cut(self, request: CutRequest) -> Released:
        return self._read(Released, "POST", "/v1/cuts/release", request)

    def confirm_cut(self, request: CutRequest) -> Confirmed:
        return self._read(Confirmed, "POST", "/v1/cuts/confirm", request)

    def verify(self, request: VerifyRequest) -> Iterator[VerifyStart | VerifySegment | VerifyDone]:
        """One line per segment as the node checks it. Raises Unavailable when the stream ends before its last line."""
        with self._open("POST", "/v1/verify", request, timeout_s=600.0) as answer:
            try:
                for line in answer:
                    read = read_verify_line(line)
                    yield read
                    if isinstance(read, VerifyDone):
                        return
            except (OSError, http.client.HTTPException) as error:
                raise Unavailable(f"{self.base}: the check was cut off ({error}); run it again") from None
        raise Unavailable(f"{self.base}: the check ended early; read the log of the node, then run it again")

    # Calls ------------------------------------------------------------------------------------------------------
    def _read(self, model: type[M], method: str, path: str, body: BaseModel | None = None) -> M:
        body_read = self._call(method, path, body)
        try:
            return model.model_validate_json(body_read)
        except ValidationError:
            raise self._foreign(method, path, "its answer is another") from None

    def _read_list(self, model: type[M], method: str, path: str, body: BaseModel | None = None) -> list[M]:
        body_read = self._call(method, path, body)
        try:
            return TypeAdapter(list[model]).validate_json(body_read)  # type: ignore[valid-type]
        except ValidationError:
            raise self._foreign(method, path, "its answer is another") from None

    def _foreign(self, method: str, path: str, how: str) -> WrongServer | OutcomeUnknown:
        """For an answer that is not one of a node's admin port. After a change it is then unknown what was done."""
        misplaced = (
            f"what answers at {self.base} is not the admin port of a storage node ({method} {path}: {how}); name a "
            "node's metrics.listen address with --admin HOST:PORT"
        )
        return WrongServer(misplaced) if method == "GET" else OutcomeUnknown(misplaced)

    def _call(self, method: str, path: str, body: BaseModel | None = None) -> bytes:
        with self._open(method, path, body, self._timeout_s) as answer:
            try:
                read: bytes = answer.read()
            except (OSError, http.client.HTTPException) as error:
                raise self._doubt(method, path, error) from None
        return read

    def _open(self, method: str, path: str, body: BaseModel | None, timeout_s: float) -> Any:
        data = None if body is None else body.model_dump_json().encode()
        request = urllib.request.Request(self.base + path, data=data, method=method)
        request.add_header("Content-Type", "application/json")
        if self._token is not None:
            # Not sent on to where an answer may point to.
            request.add_unredirected_header("Authorization", bearer(self._token()))
        try:
            return self._opener.open(request, timeout=timeout_s)
        except urllib.error.HTTPError as error:
            with error:
                answer = error.read()
            if error.code < 500 and reported_error(answer) is None:
                raise self._foreign(method, path, f"it answers {error.code}, and not as a node does") from None
            raise error_from_body(error.code, answer) from None
        except urllib.error.URLError as error:
            if isinstance(error.reason, (ConnectionRefusedError, socket.gaierror)):
                why = error.reason.strerror or error.reason
                raise Unavailable(
                    f"no node answers at {self.base} ({why}); start it with `stratalog start`, in a cluster with "
                    "`stratalog node start`, or name its metrics.listen address with --admin HOST:PORT"
                ) from None
            raise self._doubt(method, path, error.reason) from None
        except (OSError, http.client.HTTPException) as error:
            raise self._doubt(method, path, error) from None

    def _doubt(self, method: str, path: str, error: object) -> Unavailable | OutcomeUnknown:
        """Losing the answer to a question does no harm. After a change, a lost answer leaves open whether the change
        was made."""
        if isinstance(error, BaseException) and (why := why_no_tls(error)) is not None:
            return Unavailable(f"the node at {self.base} cannot be asked: {why}")
        if isinstance(error, http.client.BadStatusLine) and not isinstance(error, http.client.RemoteDisconnected):
            return self._foreign(method, path, "it speaks no HTTP")
        where = f"{method} {self.base}{path}"
        is_closed = isinstance(error, http.client.RemoteDisconnected)
        if is_closed:
            # A Kafka listener takes a request line for a frame of a size that it refuses.
            error = f"{error}, as a Kafka listener does, too: --admin is a node's metrics.listen; with TLS, https://…"
        if method == "GET":
            kind = WrongServer if is_closed else Unavailable
            return kind(f"{where}: no answer ({error}); try again")
        return OutcomeUnknown(f"{where}: the answer was lost ({error}); look with GET before doing it again")


def _topic_path(name: str) -> str:
    return "/v1/topics/" + urllib.parse.quote(name, safe="")
