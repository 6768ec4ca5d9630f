"""Object stores that obstore speaks to: S3 and its kin, Google Cloud Storage, Azure Blob Storage, and memory.

obstore's own retries are off: they would repeat a put whose answer was lost, and then report our own object as another
writer's (F46). Reads are checked for their length, so a wrong body never becomes an answer (F44).
Lives on the event loop; the work is done by obstore's threads, which do not hold the interpreter lock.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import obstore
import obstore.exceptions
from obstore.store import AzureStore, GCSStore, MemoryStore, S3Store

from stratalog.model.errors import Corrupt, InvalidRequest, NotFound
from stratalog.objects.archived import ASK_S, NOT_KNOWN, ArchiveState, ask
from stratalog.objects.calls import StoreCalls
from stratalog.objects.keys import check_key, check_prefix, check_range, folder_of
from stratalog.objects.obstore_errors import (
    WrongBody,
    archived_with,
    classify,
    first_line,
    is_archived,
    is_empty_range,
    is_missing_object,
)
from stratalog.objects.probe import probe_store
from stratalog.objects.settings import StoreSettings
from stratalog.objects.stats import Operation, StoreStats
from stratalog.objects.store import Capabilities, ObjectInfo
from stratalog.objects.urls import AzureLocation, GcsLocation, S3Location

if TYPE_CHECKING:
    from obstore import Attributes

T = TypeVar("T")
Client: TypeAlias = S3Store | GCSStore | AzureStore | MemoryStore

_DELETE_BATCH = 1_000
"""S3 refuses a request with more keys (F45)."""
_AZURE_DELETE_BATCH = 256
"""Azure as well."""
_GCS_DELETE_BATCH = 100
"""Each is a request of its own there, some of them at a time: as many as fit one deadline."""
GCS_NO_LOGIN: Final = json.dumps({"disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""})
"""What obstore takes for a service account that signs nothing; its `skip_signature` holds for reads alone."""
_SINGLE_DELETES = 16
"""At a time, where a batch had missing objects in it."""
_LIST_PAGE = 1_000
_GCS_CLASSES: Final = {name: name for name in ("NEARLINE", "COLDLINE", "ARCHIVE")}
_AZURE_CLASSES: Final = {"COOL": "Cool", "COLD": "Cold"}
"""Access tiers that are online. Its archive tier must be left before a blob is read."""


class ObstoreStore:
    """An `ObjectStore` over one of obstore's clients, below a prefix."""

    def __init__(self, client: Client, *, url: str, prefix: str, settings: StoreSettings) -> None:
        self._client = client
        self._url = url
        self._prefix = f"{prefix}/" if prefix else ""
        self._calls = StoreCalls(settings, classify)
        self._delete_batch = _DELETE_BATCH
        if isinstance(client, (GCSStore, AzureStore)):
            self._delete_batch = _GCS_DELETE_BATCH if isinstance(client, GCSStore) else _AZURE_DELETE_BATCH

    @property
    def url(self) -> str:
        return self._url

    @property
    def stats(self) -> StoreStats:
        return self._calls.stats

    async def probe(self) -> Capabilities:
        return await probe_store(self)

    async def put(self, key: str, body: Sequence[bytes | memoryview], storage_class: str = "") -> None:
        path = self._path(key)
        buffers = [buffer for buffer in body if len(buffer)] or [b""]
        attributes: Attributes | None = None
        if storage_class and not isinstance(self._client, MemoryStore):
            attributes = {"Storage-Class": self._class_of(key, storage_class)}

        async def attempt() -> None:
            await obstore.put_async(
                self._client, path, buffers, attributes=attributes, mode="create", use_multipart=False
            )

        size_bytes = sum(memoryview(buffer).nbytes for buffer in buffers)
        await self._calls.run(Operation.PUT, self._where(key), attempt, size_bytes=size_bytes)

    def _class_of(self, key: str, storage_class: str) -> str:
        """As the store names it. Only S3's own answer says what a server of S3 has."""
        if isinstance(self._client, S3Store):
            return storage_class
        known = _AZURE_CLASSES if isinstance(self._client, AzureStore) else _GCS_CLASSES
        found = known.get(storage_class)
        if found is None:
            raise InvalidRequest(
                f"put {self._where(key)}: this store has no storage class {storage_class}: set remote.storage.class to "
                f"STANDARD, {' or '.join(known)}"
            )
        return found

    async def get(self, key: str) -> bytes:
        path = self._path(key)
        where = self._where(key)

        async def attempt() -> bytes:
            answer = await self._unless_archived(path, where, self._get_all(path))
            body = bytes(memoryview(await answer.bytes_async()))
            expected = answer.meta["size"]
            if len(body) != expected:
                raise WrongBody(f"body has {len(body)} bytes, the object {expected}")
            return body

        body = await self._calls.run(Operation.GET, where, attempt)
        self.stats[Operation.GET].bytes += len(body)
        return body

    async def _get_all(self, path: str) -> Any:
        """Asks for a range without an end: only such an answer says how large the object is, and a body that was cut
        on its way, with its length made to fit, is seen."""
        try:
            return await obstore.get_async(self._client, path, options={"range": {"offset": 0}})
        except obstore.exceptions.BaseError as error:
            if not is_empty_range(error):
                raise
        return await obstore.get_async(self._client, path)

    async def _unless_archived(self, path: str, where: str, answer: Awaitable[T]) -> T:
        """The answer to a GET. Raises: Archived for an object that must be restored first, with what a HEAD says."""
        try:
            return await answer
        except obstore.exceptions.BaseError as error:
            if not is_archived(error):
                raise
            raise archived_with(error, Operation.GET, where, await self._archive_state(path)) from error

    async def _archive_state(self, path: str) -> ArchiveState:
        """obstore gives no headers, so the request is signed here and sent beside it."""
        if not isinstance(self._client, S3Store):
            return NOT_KNOWN
        self.stats[Operation.HEAD].requests += 1
        try:
            url = await obstore.sign_async(self._client, "HEAD", path, timedelta(minutes=1))
            async with asyncio.timeout(ASK_S):
                return await asyncio.to_thread(ask, url)
        except (obstore.exceptions.BaseError, TimeoutError):
            return NOT_KNOWN

    async def _size_of(self, path: str, start: int, end: int) -> int:
        """Of the whole object, as an answer to a range says; its body is not read."""
        self.stats[Operation.GET].requests += 1
        answer = await obstore.get_async(self._client, path, options={"range": (start, end)})
        return int(answer.meta["size"])

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        return bytes(await self.get_range_view(key, start, end))

    async def get_range_view(self, key: str, start: int, end: int) -> memoryview:
        check_range(key, start, end)
        path = self._path(key)
        where = self._where(key)

        async def attempt() -> memoryview:
            asked = obstore.get_range_async(self._client, path, start=start, end=end)
            view = memoryview(await self._unless_archived(path, where, asked))
            if len(view) != end - start:
                short = f"range [{start}, {end}) was answered with {len(view)} bytes"
                if await self._size_of(path, start, end) < end:
                    raise Corrupt(f"{short}: the object ends before it", source=where, position=start)
                raise WrongBody(short)
            return view

        return await self._calls.run(Operation.GET, where, attempt, size_bytes=end - start)

    async def head(self, key: str) -> ObjectInfo:
        path = self._path(key)

        async def attempt() -> ObjectInfo:
            return self._info(await obstore.head_async(self._client, path))

        try:
            return await self._calls.run(Operation.HEAD, self._where(key), attempt)
        except NotFound:
            # The answer to a HEAD has no body, so it does not say whether the object or the whole bucket is missing.
            await self.get_range(key, 0, 1)
            return await self._calls.run(Operation.HEAD, self._where(key), attempt)  # it has come meanwhile

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        check_prefix(prefix)
        # obstore matches whole path segments, and strips a trailing slash.
        folder = self._prefix + folder_of(prefix)
        last: str | None = None
        while True:
            page = await self._list_page(prefix, folder, last)
            for info in page:
                if info.key.startswith(prefix):
                    yield info
            if len(page) < _LIST_PAGE:
                return
            last = self._prefix + page[-1].key

    async def _list_page(self, prefix: str, folder: str, after: str | None) -> Sequence[ObjectInfo]:
        async def attempt() -> Sequence[ObjectInfo]:
            async for found in obstore.list(self._client, folder or None, offset=after, chunk_size=_LIST_PAGE):
                return tuple(map(self._info, found))
            return ()

        return await self._calls.run(Operation.LIST, f"{self._url}: keys below {prefix!r}", attempt)

    async def delete(self, keys: Sequence[str]) -> None:
        paths = [self._path(key) for key in keys]
        for first in range(0, len(paths), self._delete_batch):
            batch = paths[first : first + self._delete_batch]

            async def attempt(batch: Sequence[str] = batch) -> None:
                await self._delete_all(batch)

            await self._calls.run(Operation.DELETE, self._deletion(keys, first), attempt)

    async def _delete_all(self, batch: Sequence[str]) -> None:
        """S3 says nothing of missing objects. Others do, and obstore's error for a batch names only the first that was
        not deleted: what became of the others is not known, so each is deleted alone."""
        try:
            await obstore.delete_async(self._client, batch)
        except (obstore.exceptions.BaseError, FileNotFoundError) as error:
            if isinstance(self._client, S3Store) or not is_missing_object(error):
                raise
        else:
            return
        if len(batch) == 1:
            return
        slots = asyncio.Semaphore(_SINGLE_DELETES)

        async def delete_one(path: str) -> None:
            async with slots:
                await self._delete_all([path])

        answers = await asyncio.gather(*map(delete_one, batch), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer

    def _deletion(self, keys: Sequence[str], first: int) -> str:
        return f"{self._where(keys[first])} and {min(len(keys) - first, self._delete_batch) - 1} more"

    async def close(self) -> None:
        """obstore closes its connections when the client is dropped."""

    def _path(self, key: str) -> str:
        return self._prefix + check_key(key)

    def _where(self, key: str) -> str:
        return f"{self._url}/{key}"

    def _info(self, meta: Any) -> ObjectInfo:
        return ObjectInfo(
            key=meta["path"].removeprefix(self._prefix),
            size_bytes=meta["size"],
            modified_ms=int(meta["last_modified"].timestamp() * 1_000),
        )


def open_s3(location: S3Location, settings: StoreSettings) -> ObstoreStore:
    """A client of one bucket. Makes no request. What the location leaves open is taken from the AWS_* environment."""
    config: dict[str, Any] = dict(location.config)
    client = S3Store(location.bucket, **config, **_patience(settings, allow_http=location.allow_http))
    return ObstoreStore(client, url=location.url, prefix=location.prefix, settings=settings)


def open_gcs(location: GcsLocation, settings: StoreSettings) -> ObstoreStore:
    """A client of one bucket. Makes no request. What the location leaves open is taken from the GOOGLE_* environment,
    or from the metadata server of the machine or the pod.

    Raises: InvalidRequest for credentials that cannot be read.
    """
    given = location.config
    config: dict[str, Any] = {"base_url": given["endpoint"]} if "endpoint" in given else {}
    if given.get("skip_signature"):
        config["service_account_key"] = GCS_NO_LOGIN
    elif "credentials_file" in given:
        config["application_credentials"] = given["credentials_file"]
    try:
        client = GCSStore(location.bucket, **config, **_patience(settings, allow_http=location.allow_http))
    except obstore.exceptions.BaseError as error:
        why = first_line(error)
        raise InvalidRequest(
            f"{location.url}: {why}; name a readable key file of a service account in credentials_file, or in "
            "GOOGLE_APPLICATION_CREDENTIALS"
        ) from error
    return ObstoreStore(client, url=location.url, prefix=location.prefix, settings=settings)


def open_azure(location: AzureLocation, settings: StoreSettings) -> ObstoreStore:
    """A client of one container. Makes no request. What the location leaves open is taken from the AZURE_* environment:
    keys, a service principal, or the token of a pod's workload identity.

    Raises: InvalidRequest for settings that obstore cannot use.
    """
    config: dict[str, Any] = dict(location.config)
    try:
        client = AzureStore(location.bucket, **config, **_patience(settings, allow_http=location.allow_http))
    except obstore.exceptions.BaseError as error:
        raise InvalidRequest(
            f"{location.url}: {first_line(error)}; correct the URL or the AZURE_* variables"
        ) from error
    return ObstoreStore(client, url=location.url, prefix=location.prefix, settings=settings)


def _patience(settings: StoreSettings, *, allow_http: bool) -> dict[str, Any]:
    longest_s = settings.deadline_ms / 1_000 + settings.transfer_s(1 << 30)
    return {
        "client_options": {
            "allow_http": allow_http,
            "connect_timeout": timedelta(milliseconds=min(5_000, settings.attempt_timeout_ms)),
            # Our deadline comes first; this timeout only ends requests that no caller waits for any more.
            "timeout": timedelta(seconds=longest_s),
        },
        "retry_config": {"max_retries": 0, "retry_timeout": timedelta(seconds=longest_s)},
    }


def open_memory(settings: StoreSettings) -> ObstoreStore:
    """A store that lives and dies with this object: for tests and trials."""
    return ObstoreStore(MemoryStore(), url="memory:", prefix="", settings=settings)
