"""A directory as an object store: for one machine, and for file systems that are shared.

A listing gives keys in the byte order in which a bucket lists them. Names are compared as parts of whole keys, so a
folder counts with its slash (`a-b` < `a/b` < `a0`). Cost: a page of a listing reads the folders on its way and holds
their names; it does not enter folders that lie wholly before the page.
Durability: see `objects.directory_files`.
Threads: files are touched in this store's own threads, never on the event loop; a file system that hangs blocks
these threads and every call runs into its deadline. Reads (get, head) have threads of their own, so that neither they
nor what writes, lists and deletes waits for the other.
Files of other programs in the directory are listed when their names are keys; other names are not.
"""

from __future__ import annotations

import asyncio
import errno
import os
import stat
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

from stratalog.model.errors import (
    AlreadyExists,
    Corrupt,
    DiskFull,
    InvalidRequest,
    NotFound,
    OutcomeUnknown,
    StratalogError,
    Unavailable,
)
from stratalog.objects.calls import Failure, StoreCalls
from stratalog.objects.directory_files import (
    AnotherFileSystem,
    DirectoryFiles,
    LinkedNotFlushed,
    read_range,
    read_range_into,
)
from stratalog.objects.keys import check_key, check_prefix, check_range, folder_of, is_segment
from stratalog.objects.probe import probe_store
from stratalog.objects.reused_buffers import ReusedBuffers
from stratalog.objects.settings import StoreSettings
from stratalog.objects.stats import FailureKind, Operation, StoreStats
from stratalog.objects.store import Capabilities, ObjectInfo

T = TypeVar("T")

_BUFFER_BYTES = 64 << 20
"""Kept of what ranges are read into: somewhat more than cold readers hold."""
_PAGE = 1_000
"""Keys of one listing page and of one deletion: what one thread is given to do."""


class RootIsAFile(Exception):
    """There is a file where the store's directory should be."""


class DirectoryStore:
    """An `ObjectStore` below one directory, which is made when it is missing."""

    def __init__(self, root: Path, settings: StoreSettings) -> None:
        self._root = root
        self._files = DirectoryFiles(root)
        self._calls = StoreCalls(settings, classify)
        self._buffers = ReusedBuffers(_BUFFER_BYTES)
        self._readers = ThreadPoolExecutor(settings.threads, thread_name_prefix="object-store-read")
        self._writers = ThreadPoolExecutor(settings.threads, thread_name_prefix="object-store-write")

    @property
    def url(self) -> str:
        return f"file://{self._root}"

    @property
    def stats(self) -> StoreStats:
        return self._calls.stats

    async def probe(self) -> Capabilities:
        return await probe_store(self)

    async def put(self, key: str, body: Sequence[bytes | memoryview], storage_class: str = "") -> None:
        path = self._path(key)
        buffers = [memoryview(buffer).cast("B") for buffer in body if len(buffer)]
        size_bytes = sum(buffer.nbytes for buffer in buffers)
        await self._run(Operation.PUT, key, lambda: self._files.write(path, buffers), size_bytes)

    async def get(self, key: str) -> bytes:
        path = self._path(key)
        body = await self._run(Operation.GET, key, path.read_bytes)
        self.stats[Operation.GET].bytes += len(body)
        return body

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        check_range(key, start, end)
        path = f"{self._root}/{check_key(key)}"  # joining a Path costs as much as opening the file
        return await self._run(Operation.GET, key, lambda: read_range(path, start, end), end - start)

    async def get_range_view(self, key: str, start: int, end: int) -> memoryview:
        check_range(key, start, end)
        path = f"{self._root}/{check_key(key)}"
        self._buffers.keep()

        def read() -> memoryview:
            view = self._buffers.allocate(end - start)
            read_range_into(view, path, start)
            return view

        return await self._run(Operation.GET, key, read, end - start)

    async def head(self, key: str) -> ObjectInfo:
        path = self._path(key)

        def read_info() -> ObjectInfo:
            status = path.stat()
            if not stat.S_ISREG(status.st_mode):
                raise IsADirectoryError(errno.EISDIR, "not a plain file")
            return ObjectInfo(key, status.st_size, status.st_mtime_ns // 1_000_000)

        return await self._run(Operation.HEAD, key, read_info)

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        check_prefix(prefix)
        after = ""
        while True:
            page = await self._run(Operation.LIST, prefix, partial(list_page, self._root, prefix, after, _PAGE))
            for info in page:
                yield info
            if len(page) < _PAGE:
                return
            after = page[-1].key

    async def delete(self, keys: Sequence[str]) -> None:
        paths = [self._path(key) for key in keys]
        for first in range(0, len(paths), _PAGE):
            batch = paths[first : first + _PAGE]
            await self._run(Operation.DELETE, keys[first], partial(self._files.remove, batch))

    async def close(self) -> None:
        self._buffers.drop()
        for threads in (self._readers, self._writers):
            # A call that waits for a thread is not cancelled: cancelling it would cancel another caller that was not.
            threads.shutdown(wait=False)

    # Calls ------------------------------------------------------------------------------------------------------
    async def _run(self, operation: Operation, key: str, work: Callable[[], T], size_bytes: int = 0) -> T:
        loop = asyncio.get_running_loop()
        threads = self._readers if operation in (Operation.GET, Operation.HEAD) else self._writers

        def checked() -> T:
            try:
                if operation is Operation.LIST and self._root.is_file():
                    raise RootIsAFile(self._root)  # else it looks like a bucket that holds nothing
                if operation in (Operation.LIST, Operation.DELETE):
                    self._files.check_place()  # neither misses anything
                return work()
            except FileNotFoundError:
                self._files.check_place()
                raise
            except NotADirectoryError:
                if self._root.is_file():
                    raise RootIsAFile(self._root) from None
                raise

        async def attempt() -> T:
            return await loop.run_in_executor(threads, checked)

        return await self._calls.run(operation, f"{self.url}/{key}", attempt, size_bytes=size_bytes)

    def _path(self, key: str) -> Path:
        return self._root / check_key(key)


def classify(error: Exception, operation: Operation, where: str) -> Failure:
    """What an error of the file system means; the error itself when it is not one."""
    what = f"{operation} {where}"
    if isinstance(error, Corrupt):
        return Failure(FailureKind.WRONG_BODY, error, is_retriable=False)
    if isinstance(error, RuntimeError) and "shutdown" in str(error):
        return Failure(FailureKind.REFUSED, Unavailable(f"{what}: the store is closed"), is_retriable=False)
    if isinstance(error, RootIsAFile):
        refused = InvalidRequest(f"{what}: {error} is a file, not a directory: name another")
        return Failure(FailureKind.REJECTED, refused, is_retriable=False)
    if isinstance(error, AnotherFileSystem):
        return Failure(FailureKind.REFUSED, Unavailable(f"{what}: {error}"), is_retriable=False)
    if not isinstance(error, OSError):
        raise error
    failed: StratalogError
    if isinstance(error, LinkedNotFlushed):
        failed = OutcomeUnknown(f"{what}: written, but not flushed ({error}); write again under a new name")
        return Failure(FailureKind.OTHER, failed, is_retriable=False)
    match error.errno:
        case errno.ENOENT if operation is not Operation.PUT:
            return Failure(FailureKind.NOT_FOUND, NotFound(f"{what}: no such object"), is_retriable=False)
        case errno.EEXIST if operation is Operation.PUT:
            failed = AlreadyExists(f"{what}: the object exists; it may be an earlier attempt of this writer")
            return Failure(FailureKind.ALREADY_EXISTS, failed, is_retriable=False)
        case errno.ENOTDIR | errno.EISDIR if operation is not Operation.PUT:
            return Failure(FailureKind.NOT_FOUND, NotFound(f"{what}: no such object"), is_retriable=False)
        case errno.ENOTDIR | errno.EISDIR | errno.ENAMETOOLONG | errno.ELOOP:
            failed = InvalidRequest(f"{what}: {error.strerror}; a key cannot be below another key")
            return Failure(FailureKind.REJECTED, failed, is_retriable=False)
        case errno.ENOSPC | errno.EDQUOT:
            failed = DiskFull(f"{what}: {error.strerror}; free space in {where}")
            return Failure(FailureKind.NO_SPACE, failed, is_retriable=False)
        case errno.EACCES | errno.EPERM | errno.EROFS:
            failed = Unavailable(f"{what}: {error.strerror}; check the directory's owner and mount")
            return Failure(FailureKind.DENIED, failed, is_retriable=False)
        case errno.EINVAL | errno.EOPNOTSUPP | errno.ENOSYS | errno.ENOENT:
            failed = Unavailable(f"{what}: {error.strerror}; files cannot be kept there, name a directory on a disk")
            return Failure(FailureKind.DENIED, failed, is_retriable=False)
        case _:
            # Before the link nothing is seen under the name: nothing was done.
            return Failure(FailureKind.OTHER, Unavailable(f"{what}: {error}; try later"), is_retriable=True)


def list_page(root: Path, prefix: str, after: str, limit: int) -> list[ObjectInfo]:
    """At most `limit` objects whose key starts with `prefix` and is above `after`."""
    page: list[ObjectInfo] = []
    for info in _walk(root, folder_of(prefix), prefix, after):
        page.append(info)
        if len(page) == limit:
            break
    return page


def _walk(root: Path, folder: str, prefix: str, after: str) -> Iterator[ObjectInfo]:
    try:
        with os.scandir(root / folder) as entries:
            names = sorted(
                entry.name + "/" if entry.is_dir(follow_symlinks=False) else entry.name
                for entry in entries
                if is_segment(entry.name)
            )
    except (FileNotFoundError, NotADirectoryError):
        return
    for name in names:
        key = folder + name
        if name.endswith("/"):
            should_follow = key.startswith(prefix) or prefix.startswith(key)
            if should_follow and (key > after or after.startswith(key)):
                yield from _walk(root, key, prefix, after)
        elif key > after and key.startswith(prefix):
            try:
                status = os.stat(root / key, follow_symlinks=False)
            except FileNotFoundError:
                continue  # deleted while we walked
            yield ObjectInfo(key, status.st_size, status.st_mtime_ns // 1_000_000)
