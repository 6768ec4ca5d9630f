"""Records as JSON, derived from their dataclasses, so the fields of a record are written down once.

A dataclass or a named tuple is an object of its fields, bytes are base64, an enum its value, an id text. One of several
records is an object with one field, named after the kind (`{"topic_changed": {...}}`); an error is a problem.
Requests to the service are read strictly: an unknown field is refused, a number must be in the bounds of its type
(`stratalog.model.bounds`), text is not accepted as a number, and the first wrong record ends the reading. Answers of
the service may have fields that a newer version adds.

Importing this costs tens of milliseconds, a shape less than one: only what speaks HTTP imports it (decision 0015).
Cost: 4 us per segment to JSON, 7 us back.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Generic, NamedTuple, TypeAlias, TypeVar, Union, get_args, get_origin
from typing import get_type_hints as hints_of
from uuid import UUID

from pydantic_core import CoreSchema, SchemaSerializer, SchemaValidator, ValidationError
from pydantic_core import core_schema as schemas

from stratalog.meta_api.problems import Problem, from_problem, to_problem
from stratalog.model.bounds import INT64, Bounds
from stratalog.model.errors import StratalogError

T = TypeVar("T")
JsonObject: TypeAlias = dict[str, object]
COMPONENTS: Final = "#/components/schemas/"
_BASE64: Final = schemas.CoreConfig(ser_json_bytes="base64", val_json_bytes="base64", hide_input_in_errors=True)
"""Each schema that makes a validator of its own is given it: it is not handed down to what lies within. No error
repeats what was read: it may be a key."""


class NotOfShape(Exception):
    """What was read is something else; the message names the field."""


class JsonShape(Generic[T]):
    """How one type is written as JSON, and read back."""

    def __init__(self, kind: object, *, is_asked: bool = False) -> None:
        """`is_asked`: a caller asks for it, so it is read strictly."""
        forms = _Maker(is_asked).forms(kind)
        self._reader = SchemaValidator(forms.read, _BASE64)
        self._writer = SchemaSerializer(forms.write, _BASE64)

    def write(self, value: T) -> bytes:
        return self._writer.to_json(value)

    def read(self, raw: bytes) -> T:
        """Raises NotOfShape."""
        try:
            value: T = self._reader.validate_json(raw)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            place = ".".join(str(step) for step in first["loc"]) or "all of it"
            raise NotOfShape(f"{place:.200}: {first['msg']}") from error
        return value


def describe(kind: object, components: dict[str, JsonObject]) -> JsonObject:
    """The JSON schema of a type; those of the records in it are added to `components`."""
    return _Maker(False, components).forms(kind).described


def field_name(kind: type) -> str:
    """`TopicChanged` as `topic_changed`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()


class _Forms(NamedTuple):
    """A type in three forms: how it is read, how it is written, and how it is described."""

    read: CoreSchema
    write: CoreSchema
    described: JsonObject


_PLAIN: Final[dict[object, _Forms]] = {
    str: _Forms(schemas.str_schema(strict=True), schemas.str_schema(), {"type": "string"}),
    bool: _Forms(schemas.bool_schema(strict=True), schemas.bool_schema(), {"type": "boolean"}),
    UUID: _Forms(schemas.uuid_schema(), schemas.uuid_schema(), {"type": "string", "format": "uuid"}),
    bytes: _Forms(schemas.bytes_schema(), schemas.bytes_schema(), {"type": "string", "contentEncoding": "base64"}),
    float: _Forms(schemas.float_schema(strict=True, allow_inf_nan=False), schemas.float_schema(), {"type": "number"}),
    NoneType: _Forms(schemas.none_schema(), schemas.none_schema(), {"type": "null"}),
}


class _Maker:
    """Makes the forms of a type and of all that is in it. Types are what get_type_hints says, so any object."""

    def __init__(self, is_asked: bool, components: dict[str, JsonObject] | None = None) -> None:
        self._is_asked = is_asked
        self._components = {} if components is None else components
        self._made: dict[object, _Forms] = {}

    def forms(self, kind: object) -> _Forms:
        made = self._made.get(kind)
        if made is None:
            made = self._made[kind] = _PLAIN.get(kind) or self._make(kind)
        return made

    def _make(self, kind: object) -> _Forms:
        origin, inner = get_origin(kind), get_args(kind)
        if kind is int:
            return self._number(INT64)
        if origin is Annotated and inner[0] is int and isinstance(inner[1], Bounds):
            return self._number(inner[1])
        if origin in (Union, UnionType):
            return self._one_of(inner)
        if origin in (tuple, Sequence):
            return _several(self.forms(inner[0]), is_tuple=origin is tuple)
        if kind == Mapping[str, str]:
            return _texts()
        if isinstance(kind, type) and issubclass(kind, Enum):
            return _choice(kind)
        if isinstance(kind, type) and issubclass(kind, StratalogError):
            return self._converted(Problem, to_problem, from_problem)
        if isinstance(kind, type) and is_dataclass(kind):
            return self._dataclass(kind)
        if isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields"):
            return self._named_tuple(kind)
        raise TypeError(f"{kind!r} has no JSON shape: give it one here, or another type")

    def _number(self, bounds: Bounds) -> _Forms:
        read = schemas.int_schema(strict=True)
        if self._is_asked:
            read = schemas.int_schema(strict=True, ge=bounds.least, le=bounds.most)
        return _Forms(read, schemas.int_schema(), {"type": "integer", "minimum": bounds.least, "maximum": bounds.most})

    def _one_of(self, kinds: tuple[object, ...]) -> _Forms:
        some = [kind for kind in kinds if kind is not NoneType]
        forms = self.forms(some[0]) if len(some) == 1 else self._tagged(some)
        if len(some) == len(kinds):
            return forms
        return _Forms(
            schemas.nullable_schema(forms.read),
            schemas.nullable_schema(forms.write),
            {"anyOf": [forms.described, {"type": "null"}]},
        )

    def _tagged(self, kinds: list[object]) -> _Forms:
        """An object with one field, whose name is the kind of its value."""
        named = {_tag(kind): self.forms(kind) for kind in kinds}

        def tagged(value: object) -> dict[str, object]:
            kind = StratalogError if isinstance(value, StratalogError) else type(value)
            return {_tag(kind): value}

        def untagged(value: dict[str, object]) -> object:
            if len(value) != 1:
                raise ValueError(f"exactly one of {', '.join(named)} must be there")
            return next(iter(value.values()))

        read = schemas.typed_dict_schema(
            {tag: schemas.typed_dict_field(one.read, required=False) for tag, one in named.items()},
            extra_behavior="forbid",
            config=_BASE64,
        )
        write = schemas.typed_dict_schema(
            {tag: schemas.typed_dict_field(one.write, required=False) for tag, one in named.items()}, config=_BASE64
        )
        described: JsonObject = {
            "type": "object",
            "properties": {tag: one.described for tag, one in named.items()},
            "minProperties": 1,
            "maxProperties": 1,
        }
        return _Forms(schemas.no_info_after_validator_function(untagged, read), _written_as(tagged, write), described)

    def _converted(self, kind: type, there: Callable[..., object], back: Callable[..., object]) -> _Forms:
        """Something that travels as another kind."""
        forms = self.forms(kind)
        return _Forms(
            schemas.no_info_after_validator_function(back, forms.read),
            _written_as(there, forms.write),
            forms.described,
        )

    # Records ----------------------------------------------------------------------------------------------------
    def _dataclass(self, kind: type) -> _Forms:
        hints = hints_of(kind, include_extras=True)
        entries = [(entry, self.forms(hints[entry.name])) for entry in fields(kind)]
        names = [entry.name for entry, _ in entries]
        if self._is_asked:
            read = _asked_record(kind, {entry.name: _with_default(entry, one.read) for entry, one in entries})
        else:
            schema_fields = [
                schemas.dataclass_field(entry.name, _with_default(entry, one.read)) for entry, one in entries
            ]
            read = schemas.dataclass_schema(
                kind, schemas.dataclass_args_schema(kind.__name__, schema_fields), names, slots=True, config=_BASE64
            )
        written = [schemas.dataclass_field(entry.name, one.write) for entry, one in entries]
        write = schemas.dataclass_schema(
            kind, schemas.dataclass_args_schema(kind.__name__, written), names, slots=True, config=_BASE64
        )
        required = [entry.name for entry, _ in entries if not _has_default(entry)]
        described = self._component(kind, {entry.name: one.described for entry, one in entries}, required)
        return _Forms(read, write, described)

    def _named_tuple(self, kind: type) -> _Forms:
        make: Any = kind  # made by its fields' names, which no type says
        hints = hints_of(kind, include_extras=True)
        named = {name: self.forms(one) for name, one in hints.items()}
        if self._is_asked:
            read = _asked_record(kind, {name: one.read for name, one in named.items()})
        else:
            schema = schemas.typed_dict_schema(
                {name: schemas.typed_dict_field(one.read) for name, one in named.items()}, config=_BASE64
            )
            read = schemas.no_info_after_validator_function(lambda value: make(**value), schema)
        write = schemas.typed_dict_schema(
            {name: schemas.typed_dict_field(one.write) for name, one in named.items()}, config=_BASE64
        )
        return _Forms(
            read,
            _written_as(make._asdict, write),
            self._component(kind, {name: one.described for name, one in named.items()}, list(named)),
        )

    def _component(self, kind: type, properties: JsonObject, required: list[str]) -> JsonObject:
        component: JsonObject = {"type": "object", "properties": properties, "required": required}
        description = inspect.getdoc(kind) or ""
        # A dataclass without a docstring gets one that begins with its name and fields.
        if description and not description.startswith(f"{kind.__name__}("):
            component["description"] = description
        self._components[kind.__name__] = component
        return {"$ref": COMPONENTS + kind.__name__}


def _tag(kind: object) -> str:
    assert isinstance(kind, type), "one of several is a record or an error"
    return "problem" if issubclass(kind, StratalogError) else field_name(kind)


def _texts() -> _Forms:
    def read(value: object) -> object:
        if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
            raise ValueError("an object is needed whose fields are all text")
        return value

    name = _PLAIN[str]
    return _Forms(
        schemas.no_info_plain_validator_function(read),
        schemas.dict_schema(name.write, name.write),
        {"type": "object", "additionalProperties": name.described},
    )


def _choice(kind: type[Enum]) -> _Forms:
    values = [member.value for member in kind]
    if issubclass(kind, int):
        # Its own schema takes `true` and 3.0 for numbers.
        number = schemas.no_info_after_validator_function(kind, schemas.int_schema(strict=True))
        return _Forms(number, schemas.int_schema(), {"type": "integer", "enum": values})
    read = schemas.enum_schema(kind, list(kind), sub_type="str")
    return _Forms(read, read, {"type": "string", "enum": values})


def _asked_record(kind: type, entries: Mapping[str, CoreSchema]) -> CoreSchema:
    """A record that a caller sends. The first field that is not known ends the reading: a list of all that is wrong
    with a body of megabytes would take gigabytes."""

    def refuse(name: object) -> object:
        raise NotOfShape(f"{kind.__name__} has no field {name!r:.80}")

    def made(value: tuple[dict[str, object], object, object]) -> object:
        return kind(**value[0])

    return schemas.no_info_after_validator_function(
        made,
        schemas.model_fields_schema(
            {name: schemas.model_field(schema) for name, schema in entries.items()},
            model_name=kind.__name__,
            extra_behavior="allow",
            extras_keys_schema=schemas.no_info_plain_validator_function(refuse),
        ),
    )


def _several(one: _Forms, *, is_tuple: bool) -> _Forms:
    """A list, read as a tuple."""
    read = schemas.tuple_schema([one.read], variadic_item_index=0, fail_fast=True)
    write = schemas.tuple_schema([one.write], variadic_item_index=0)
    described: JsonObject = {"type": "array", "items": one.described}
    return _Forms(read, write if is_tuple else _written_as(tuple, write), described)


def _written_as(there: Callable[..., object], write: CoreSchema) -> CoreSchema:
    return schemas.any_schema(serialization=schemas.plain_serializer_function_ser_schema(there, return_schema=write))


def _has_default(entry: Field[Any]) -> bool:
    return entry.default is not MISSING or entry.default_factory is not MISSING


def _with_default(entry: Field[Any], schema: CoreSchema) -> CoreSchema:
    if entry.default is not MISSING:
        return schemas.with_default_schema(schema, default=entry.default)
    if entry.default_factory is not MISSING:
        return schemas.with_default_schema(schema, default_factory=entry.default_factory)
    return schema
