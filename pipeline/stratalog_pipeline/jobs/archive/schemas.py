"""The schemas of an archived table: each has all fields of the one before, and says how all records are read.

A schema is put once under the next number, before a plan names it; so all that archive a segment read it alike.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa

from stratalog.model.errors import Corrupt, InvalidRequest
from stratalog.objects import ObjectStore
from stratalog_pipeline.jobs.archive.piece import FieldsFound, RecordSchema, packed
from stratalog_pipeline.jobs.columns.json_inference import MOST_FIELDS, fields_in, remember, unite
from stratalog_pipeline.jobs.columns.record_kinds import evolve
from stratalog_pipeline.jobs.columns.table_layout import Kind, TableFormat, TimePartition, schema_key, schemas_prefix
from stratalog_pipeline.jobs.columns.table_types import check_columns, contradictions, settled
from stratalog_pipeline.jobs.put_once import put_once

_TRIES: Final = 10


class Schemas:
    def __init__(self, target: ObjectStore, topic: str, table: TableFormat, by: TimePartition) -> None:
        self._target = target
        self._topic = topic
        self._table = table
        self._by = by

    async def for_given(self, given: RecordSchema) -> int:
        """The number of the schema for new segments, by one that people gave. Raises: InvalidRequest where it gives
        other types to fields that the table has."""
        return await self._for_new(given, [], is_given=True)

    async def for_found(self, found: Iterable[FieldsFound], *, is_confluent: bool = False) -> int:
        """By what was found in the records. Raises: InvalidRequest where they contradict each other and there is no
        table yet whose types decide."""
        fields, wrong = pa.schema([]), dict[str, None]()
        for one in sorted(found, key=lambda one: one.number):
            fields, more = unite(fields, pa.ipc.read_schema(pa.py_buffer(one.arrow)))
            remember(wrong, [*one.wrong, *more])
        wanted = RecordSchema(Kind.JSON, packed(fields), is_confluent=is_confluent)
        return await self._for_new(wanted, list(wrong), is_given=False)

    async def _for_new(self, wanted: RecordSchema, wrong: list[str], *, is_given: bool) -> int:
        for _ in range(_TRIES):
            newest = await self._newest()
            if not newest and wrong:
                raise InvalidRequest(
                    f"the records contradict each other: {', '.join(wrong)[:500]}: give a --schema for the first run, "
                    "by which those that do not fit become dead letters"
                )
            schema = wanted
            if newest:
                known = await self.read(newest)
                if is_given:
                    self._check_types(known.fields, wanted.fields)
                    schema = continued(known, wanted)
                else:
                    schema = continued(
                        known, replace(wanted, arrow=packed(self._possible(known.fields, wanted.fields)))
                    )
                if schema == known:
                    return newest
            self._check_columns(schema.fields)
            if await put_once(self._target, schema_key(self._topic, newest + 1), _encode(schema)):
                return newest + 1
        raise InvalidRequest(f"the schema of {self._topic} was changed {_TRIES} times meanwhile: run one job at a time")

    def _check_columns(self, fields: Any) -> None:
        """Raises: InvalidRequest for what no column can be."""
        if self._table is not TableFormat.PARQUET:
            settled(fields)
        check_columns(fields, self._table, self._by)

    def _possible(self, known: Any, found: Any) -> Any:
        """The table's fields, and of those that were found in records what can be a column. Records with the others
        become dead letters: once there is a table, no record stops a job."""
        if self._is_possible(evolve(known, found), known):
            return evolve(known, found)
        fields = known
        for one in found:
            more = evolve(fields, pa.schema([one]))
            if more != fields and self._is_possible(more, known):
                fields = more
        return fields

    def _is_possible(self, fields: Any, known: Any) -> bool:
        try:
            self._check_columns(fields)
        except InvalidRequest:
            return False
        return fields_in(fields) <= max(MOST_FIELDS, fields_in(known))

    def _check_types(self, known: Any, given: Any) -> None:
        """Columns keep their types: else no reader could read all files together. Raises: InvalidRequest."""
        if self._table is not TableFormat.PARQUET:
            known, given = settled(known), settled(given)
        wrong = contradictions(known, given)
        if wrong:
            raise InvalidRequest(
                f"the schema gives other types to fields that the table has: {', '.join(wrong)[:500]}: a {self._table} "
                "table keeps its types; name another place for the new ones"
            )

    async def read(self, number: int) -> RecordSchema:
        if number == 0:
            return RecordSchema(Kind.RAW)
        key = schema_key(self._topic, number)
        try:
            document = json.loads(await self._target.get(key))
            return RecordSchema(
                Kind(document["kind"]),
                base64.b64decode(document["arrow"]),
                document["definition"],
                bool(document["is_confluent"]),
                tuple(document.get("earlier", ())),
                tuple((int(number), text) for number, text in document.get("writers", ())),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise Corrupt(f"it is not a schema: {error}", source=key, position=0) from error

    async def _newest(self) -> int:
        numbers = [int(info.key[-11:-5]) async for info in self._target.list(schemas_prefix(self._topic))]
        return max(numbers, default=0)


def continued(known: RecordSchema, wanted: RecordSchema) -> RecordSchema:
    """The table's schema, and what is wanted now. Nothing that could be read before becomes unreadable. Pure.

    Raises: InvalidRequest for an id that names another schema than before, and for a --confluent that came or went.
    """
    fields = evolve(known.fields, wanted.fields)
    arrow = known.arrow if fields == known.fields else packed(fields)
    if known.is_confluent != wanted.is_confluent:
        was, would = ("with", "without") if known.is_confluent else ("without", "with")
        raise InvalidRequest(
            f"the table was written {was} --confluent: {would} it all its records would be read wrongly, or not at "
            "all; name another place for other records"
        )
    if wanted.kind is Kind.JSON:
        return replace(wanted, arrow=arrow)
    if known.writers and not wanted.writers:
        raise InvalidRequest("the table knows its Avro schemas by their ids: give the new one as --schema ID=FILE, too")
    writers = dict(known.writers)
    for number, text in wanted.writers:
        if writers.setdefault(number, text) != text:
            raise InvalidRequest(
                f"schema id {number} named another schema when the table was written: an id is for good"
            )
    definition = writers[max(writers)] if writers else wanted.definition
    # Schemas without an id read records whose id has no schema, as they did before the table had ids.
    before = known.earlier if known.writers else (known.definition, *known.earlier)
    earlier = tuple(dict.fromkeys(one for one in before if writers or one != definition))
    return replace(wanted, arrow=arrow, definition=definition, earlier=earlier, writers=tuple(sorted(writers.items())))


def _encode(schema: RecordSchema) -> bytes:
    document = {
        "kind": schema.kind,
        "fields": [[one.name, str(one.type)] for one in schema.fields],
        "arrow": base64.b64encode(schema.arrow).decode(),
        "definition": schema.definition,
        "is_confluent": schema.is_confluent,
        "earlier": schema.earlier,
        "writers": schema.writers,
    }
    return json.dumps(document, indent=1).encode()
