"""Schemas that people give in files. Raises: InvalidRequest, naming the file and what is wrong.

JSON records: an object of field and Arrow type, `{"flight": "int64", "price": "decimal(10,2)", "stops": ["string"],
"crew": {"size": "int32"}}`; a list in brackets, an object in braces. Avro: its schema. Protobuf: a descriptor set.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from stratalog.model.errors import InvalidRequest
from stratalog_pipeline.jobs.archive.piece import RecordSchema, packed
from stratalog_pipeline.jobs.columns.record_columns import is_stored
from stratalog_pipeline.jobs.columns.record_kinds import Definitions
from stratalog_pipeline.jobs.columns.table_layout import Kind

_MOST_ID: Final = (1 << 32) - 1
_DECIMAL: Final = re.compile(r"decimal(?:128)?\((\d{1,2})(?:, *(\d{1,2}))?\)", re.ASCII)
_ZONED: Final = re.compile(r"timestamp\[(s|ms|us|ns), *(?:tz=)?UTC\]")


def schema_of(kind: Kind, body: bytes, source: str, message: str = "", is_confluent: bool = False) -> RecordSchema:
    match kind:
        case Kind.RAW:
            raise InvalidRequest(f"{source}: raw records are not looked into, so they have no schema")
        case Kind.JSON:
            return RecordSchema(kind, packed(_json_fields(_parsed(body, source), source)), is_confluent=is_confluent)
        case Kind.AVRO:
            from stratalog_pipeline.jobs.columns.avro_records import avro_reader

            text = json.dumps(_parsed(body, source))
            fields, _ = avro_reader(Definitions(text))
            return RecordSchema(kind, packed(fields), text, is_confluent)
        case Kind.PROTOBUF:
            from stratalog_pipeline.jobs.columns.protobuf_types import definition_of, protobuf_reader

            definition = definition_of(body, message)
            fields, _ = protobuf_reader(Definitions(definition))
            return RecordSchema(kind, packed(fields), definition, is_confluent)


def schema_of_writers(bodies: Mapping[int, tuple[bytes, str]]) -> RecordSchema:
    """Of Avro schemas under the ids that records name, each with where it came from; the highest id is the newest."""
    from stratalog_pipeline.jobs.columns.avro_records import avro_reader

    texts = {number: json.dumps(_parsed(body, source)) for number, (body, source) in bodies.items()}
    for number, text in texts.items():
        try:
            avro_reader(Definitions(text))
        except InvalidRequest as error:
            raise InvalidRequest(f"{bodies[number][1]}: {error}") from error
    writers = tuple(sorted(texts.items()))
    definitions = Definitions(texts[max(texts)], (), writers, True)
    fields, _ = avro_reader(definitions)
    return RecordSchema(Kind.AVRO, packed(fields), definitions.newest, True, (), writers)


def files_of_ids(given: Sequence[str]) -> dict[int, Path]:
    """`ID=FILE`, or a folder of `<id>.avsc`, as often as wanted. Empty where one file is given without an id.

    Raises: InvalidRequest.
    """
    found: dict[int, Path] = {}
    plain = []
    for one in given:
        number, equals, file = one.partition("=")
        if equals and number.isascii() and number.isdigit():
            more = {int(number): Path(file)}
        elif Path(one).is_dir():
            more = _of_folder(Path(one))
        else:
            plain.append(one)
            continue
        for key, path in more.items():
            if found.setdefault(key, path) != path:
                raise InvalidRequest(f"--schema: id {key} is given twice, as {found[key]} and {path}")
    too_large = [key for key in found if key > _MOST_ID]
    if too_large:
        raise InvalidRequest(f"--schema: {too_large[0]} is not an id of a schema: records name it in four bytes")
    if plain and (found or len(plain) > 1):
        raise InvalidRequest(f"--schema {plain[-1]}: of several schemas each needs its id: ID=FILE, with --confluent")
    return found


def _of_folder(folder: Path) -> dict[int, Path]:
    found = {int(one.stem): one for one in folder.glob("*.avsc") if one.stem.isascii() and one.stem.isdigit()}
    if not found:
        raise InvalidRequest(f"--schema {folder}: there is no file <id>.avsc in this folder")
    return found


def _parsed(body: bytes, source: str) -> Any:
    try:
        return json.loads(body)
    except ValueError as error:
        raise InvalidRequest(f"{source}: it is no JSON: {error}") from error


def _json_fields(document: Any, source: str) -> Any:
    if not isinstance(document, dict) or not document:
        raise InvalidRequest(f'{source}: it is not an object of fields and types, such as {{"flight": "int64"}}')
    return pa.schema([pa.field(name, _type(one, f"{source}: {name}")) for name, one in document.items()])


def _type(given: Any, where: str) -> Any:
    if isinstance(given, dict):
        return pa.struct([pa.field(name, _type(one, f"{where}.{name}")) for name, one in given.items()])
    if isinstance(given, list) and len(given) == 1:
        return pa.list_(_type(given[0], where))
    found = _single(given) if isinstance(given, str) else None
    if found is None:
        raise InvalidRequest(
            f"{where}: {given!r} is not a type: string, bool, int32, int64, double, decimal(10,2), date32, "
            "timestamp[ms], timestamp[us, UTC], binary, a list of one, or an object"
        )
    return found


def _single(name: str) -> Any:
    decimal, zoned = _DECIMAL.fullmatch(name), _ZONED.fullmatch(name)
    try:
        if decimal is not None:
            return pa.decimal128(int(decimal[1]), int(decimal[2] or 0))
        kind = pa.timestamp(zoned[1], "UTC") if zoned is not None else pa.type_for_alias(name)
    except ValueError:
        return None
    return kind if is_stored(kind) else None
