"""Reads and writes Iceberg's files through Stratalog's object stores. The catalog is a folder of metadata.

The folder is what Iceberg's Hadoop catalog makes: `<root>/metadata/v<number>.metadata.json`, and the highest number is
the table. A commit puts the next number, and a store never replaces an object, so one of two simultaneous commits is
refused. Readers begin at the number in `version-hint.text` and continue to higher ones. The hint is deleted and put
again, so it may be missing or old for a while, after a kill until the next commit; no job here reads it. Every call
opens the store again, because each call runs its own event loop. Called from the driver's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import re
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.io import FileIO, InputFile, OutputFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import assign_fresh_schema_ids
from pyiceberg.serializers import FromByteStream
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import update_table_metadata
from pyiceberg.transforms import DayTransform, HourTransform, MonthTransform

from stratalog.model.errors import AlreadyExists, Conflict, NotFound, OutcomeUnknown, Unavailable
from stratalog.objects import ObjectStore
from stratalog_pipeline.jobs.columns.table_layout import TimePartition

T = TypeVar("T")
_VERSION: Final = re.compile(r"v(\d+)\.(gz\.)?metadata\.json(\.gz)?")
_HINT: Final = "version-hint.text"
_HINT_TRIES: Final = 5
_CODEC: Final = "write.metadata.compression-codec"
_TRANSFORMS: Final = {
    TimePartition.DATE: DayTransform,
    TimePartition.HOUR: HourTransform,
    TimePartition.MONTH: MonthTransform,
}


class StoreIO(FileIO):
    """Locations begin with `base`, which the store's keys do not."""

    def __init__(self, open_store: Callable[[], ObjectStore], base: str) -> None:
        super().__init__()
        self._open_store = open_store
        self._base = f"{base}/"

    def key(self, location: str) -> str:
        if not location.startswith(self._base):
            raise NotFound(f"{location} is not in {self._base}: the table names files of another place")
        return location.removeprefix(self._base)

    def call(self, work: Callable[[ObjectStore], Coroutine[Any, Any, T]]) -> T:
        async def run() -> T:
            store = self._open_store()
            try:
                return await work(store)
            finally:
                await store.close()

        return asyncio.run(run())

    def new_input(self, location: str) -> _Input:
        return _Input(self, location)

    def new_output(self, location: str) -> _Output:
        return _Output(self, location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        key = self.key(location if isinstance(location, str) else location.location)
        self.call(lambda store: store.delete([key]))


class _Input(InputFile):
    def __init__(self, place: StoreIO, location: str) -> None:
        super().__init__(location)
        self._place = place
        self._key = place.key(location)

    def __len__(self) -> int:
        return self._place.call(lambda store: store.head(self._key)).size_bytes

    def exists(self) -> bool:
        try:
            return len(self) >= 0
        except NotFound:
            return False

    def open(self, seekable: bool = True) -> Any:
        if seekable and self._key.endswith(".parquet"):
            return io.BufferedReader(_Ranges(self._place, self._key, len(self)), 1 << 16)
        return io.BytesIO(self._place.call(lambda store: store.get(self._key)))


class _Ranges(io.RawIOBase):
    """Of a data file only the end is read."""

    def __init__(self, place: StoreIO, key: str, size: int) -> None:
        self._place, self._key, self._size, self._at = place, key, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        end = min(self._at + len(buffer), self._size)
        if end <= self._at:
            return 0
        body = self._place.call(lambda store: store.get_range(self._key, self._at, end))
        buffer[: len(body)] = body
        self._at = end
        return len(body)


class _Output(OutputFile):
    def __init__(self, place: StoreIO, location: str) -> None:
        super().__init__(location)
        self._place = place

    def __len__(self) -> int:
        return len(self.to_input_file())

    def exists(self) -> bool:
        return self.to_input_file().exists()

    def to_input_file(self) -> _Input:
        return _Input(self._place, self.location)

    def create(self, overwrite: bool = False) -> Any:
        return _Put(self._place, self._place.key(self.location))


class _Put(io.BytesIO):
    """One object, put when it is closed. Its name is used once: manifests have a UUID in theirs."""

    def __init__(self, place: StoreIO, key: str) -> None:
        super().__init__()
        self._place, self._key = place, key

    def close(self) -> None:
        if not self.closed:
            body = self.getvalue()
            super().close()
            self._place.call(lambda store: store.put(self._key, [body]))

    def __exit__(self, kind: Any, *_: object) -> None:
        if kind is not None:
            super().close()
        self.close()


class FolderCatalog(NoopCatalog):
    """One table. Commits are compared with what the table was read from, not with what it is by then."""

    def __init__(self, place: StoreIO, base: str, root: str) -> None:
        super().__init__("stratalog")
        self._place = place
        self._root = root
        self._location = f"{base}/{root}"

    def load_table(self, identifier: Any = ()) -> Table:
        """Raises: NoSuchTableError, Conflict for one whose versions cannot be told apart."""
        newest, is_packed = self._place.call(self._newest)
        if not newest:
            raise NoSuchTableError(self._location)
        table = None if is_packed else self._read(newest)
        if table is None or table.metadata.properties.get(_CODEC, "none") != "none":
            # Under another name the same version could be put twice, and one of the two commits would be lost.
            raise Conflict(
                f"{self._location}: the table's metadata are written compressed: ALTER TABLE ... SET TBLPROPERTIES "
                f"('{_CODEC}'='none'), and commit again with a writer that does so"
            )
        return table

    def make_table(self, fields: Any, time_column: str | None, by: TimePartition, properties: dict[str, str]) -> Table:
        """As it is now, whoever made it. `fields`: an Arrow schema."""
        schema = assign_fresh_schema_ids(Catalog._convert_schema_if_needed(fields))
        spec = PartitionSpec()
        if time_column is not None:
            source = schema.find_field(time_column).field_id
            spec = PartitionSpec(PartitionField(source, 1000, _TRANSFORMS[by](), by.hidden_name(time_column)))
        metadata = new_table_metadata(
            location=self._location,
            schema=schema,
            partition_spec=spec,
            sort_order=UNSORTED_SORT_ORDER,
            properties=properties,
        )
        self._put(1, metadata)
        return self.load_table()

    def commit_table(self, table: Table, requirements: Any, updates: Any) -> CommitTableResponse:
        """Raises: CommitFailedException where another commit came first, after which pyiceberg deletes what this one
        wrote; so never where it may have come about: OutcomeUnknown, Unavailable."""
        for requirement in requirements:
            requirement.validate(table.metadata)
        metadata = update_table_metadata(table.metadata, updates, metadata_location=table.metadata_location)
        found = _VERSION.search(table.metadata_location)
        assert found is not None, "it was read from a file of this name"
        number = int(found[1]) + 1
        if not self._put(number, metadata):
            raise CommitFailedException(f"{self._location}: version {number} was committed by another job")
        return CommitTableResponse(metadata=metadata, metadata_location=self._name(number))

    def _name(self, number: int) -> str:
        return f"{self._location}/metadata/v{number}.metadata.json"

    def _read(self, number: int) -> Table:
        name = self._name(number)
        with self._place.new_input(name).open() as stream:
            metadata = FromByteStream.table_metadata(stream)
        return Table(("", self._root), metadata, name, self._place, self)

    def _put(self, number: int, metadata: Any) -> bool:
        """Whether this metadata is version `number` now. Raises: OutcomeUnknown, Unavailable."""
        key = self._place.key(self._name(number))
        body = metadata.model_dump_json(exclude_none=True).encode()

        async def put(store: ObjectStore) -> bool:
            try:
                await store.put(key, [body])
                return True
            except AlreadyExists:
                pass  # by another job, or by this call, whose first answer was lost on the way
            except OutcomeUnknown as error:
                try:
                    return bool(await store.get(key) == body)
                except NotFound:
                    raise error from None
            return bool(await store.get(key) == body)

        is_put = self._place.call(put)
        if is_put:
            self._place.call(lambda store: self._put_hint(store, number))
        return is_put

    async def _put_hint(self, store: ObjectStore, number: int) -> None:
        """The commit counts, whatever comes of this."""
        key = f"{self._root}/metadata/{_HINT}"
        for _ in range(_HINT_TRIES):
            with contextlib.suppress(NotFound, ValueError):
                if int(await store.get(key)) >= number:
                    return
            try:
                await store.delete([key])
                await store.put(key, [str(number).encode()])
                return
            except AlreadyExists:
                continue  # of a job that committed at the same time
            except (OutcomeUnknown, Unavailable):
                return

    async def _newest(self, store: ObjectStore) -> tuple[int, bool]:
        """The number, 0 for none, and whether that version is compressed."""
        prefix = f"{self._root}/metadata/"
        names = [info.key.removeprefix(prefix) async for info in store.list(prefix)]
        versions = [
            (int(found[1]), bool(found[2] or found[3])) for name in names if (found := _VERSION.fullmatch(name))
        ]
        return max(versions, default=(0, False))
