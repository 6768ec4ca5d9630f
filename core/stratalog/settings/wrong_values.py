"""Turns a refused setting into one sentence: key, value, what is allowed, and the nearest names of an unknown key.

Pure apart from pydantic's own types; called at start and when a topic is altered, never on the hot path.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, Final

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from stratalog.model.counting import joined
from stratalog.model.errors import InvalidRequest
from stratalog.settings.units import DURATIONS, SIZES, takes_duration, takes_size

_WHOLE_NUMBER: Final = re.compile(r"\s*[+-]?[0-9]+\s*", re.ASCII)
_TEXT: Final = "text"


def key_of(attribute: str) -> str:
    """The name a user writes: dots where the attribute has underscores."""
    return attribute.replace("_", ".")


def fields_by_key(model: type[BaseModel]) -> dict[str, tuple[str, FieldInfo]]:
    """Key as the user writes it -> (attribute, field), in the order of the declaration."""
    return {str(field.alias or key_of(name)): (name, field) for name, field in model.model_fields.items()}


def bounds_of(field: FieldInfo) -> tuple[int | None, int | None]:
    low = next((m.ge for m in field.metadata if getattr(m, "ge", None) is not None), None)
    high = next((m.le for m in field.metadata if getattr(m, "le", None) is not None), None)
    return low, high


def allowed_words(field: FieldInfo) -> tuple[str, ...]:
    kind = field.annotation
    if isinstance(kind, type) and issubclass(kind, Enum):
        return tuple(str(member.value) for member in kind)
    return ("true", "false") if kind is bool else ()


def allowed(field: FieldInfo, key: str = "") -> str:
    """What a field may be, for people: `an integer from 1 to 10`, `one of deny, allow`; with the units that its key
    takes."""
    units = DURATIONS if takes_duration(key) else SIZES if takes_size(key) else ""
    return f"{_allowed(field)}{f', or with a unit, such as {units}' if units else ''}"


def _allowed(field: FieldInfo) -> str:
    if words := allowed_words(field):
        return "one of " + ", ".join(words)
    if field.annotation is not int:
        return _TEXT
    low, high = bounds_of(field)
    if low is not None and high is not None:
        return f"an integer from {low} to {high}"
    if low is not None:
        return f"an integer of at least {low}"
    return "an integer"


def unknown_key(key: str, known: Iterable[str], kind: str) -> InvalidRequest:
    """The refusal of an unknown key, with the nearest names."""
    by_folded = {name.casefold().replace("_", "."): name for name in known}
    folded = key.casefold().replace("_", ".").replace("-", ".")
    near = [by_folded[name] for name in difflib.get_close_matches(folded, by_folded, n=3, cutoff=0.6)]
    hint = f"did you mean {joined(near, 'or')}?" if near else "`stratalog settings` lists all names"
    return InvalidRequest(f"unknown {kind} setting {key!r}: {hint}")


def _value_text(value: object) -> str:
    text = str(value)
    return text if len(text) <= 80 else text[:77] + "..."


def refuse_no_whole_number(key: str, value: str, field: FieldInfo, kind: str) -> None:
    """Raises InvalidRequest for what pydantic takes for an integer and others do not (`2.0`): it is kept as text, and
    read by all parts. As Kafka reads numbers."""
    if field.annotation is int and _WHOLE_NUMBER.fullmatch(value) is None:
        raise InvalidRequest(
            f"{kind} setting {key}={_value_text(value)} is refused: it must be {allowed(field, key)}, in digits"
        )


def explain(error: ValidationError, model: type[BaseModel], values: Mapping[str, Any], kind: str) -> InvalidRequest:
    """One InvalidRequest that names every refused key, its value and what is allowed there."""
    fields = fields_by_key(model)
    sentences = []
    for detail in error.errors():
        key = str(detail["loc"][0]) if detail["loc"] else ""
        if not key:
            # A validator of the whole model: its message already names both settings and the reason.
            sentences.append(str(detail.get("ctx", {}).get("error", detail["msg"])))
        elif key not in fields and key not in model.model_fields:
            sentences.append(str(unknown_key(key, fields, kind)))
        else:
            field = model.model_fields[fields[key][0] if key in fields else key]
            reason = detail.get("ctx", {}).get("error")
            must = f"it must be {allowed(field, key)}"
            if reason is not None and detail["type"] == "value_error":
                # That it is text says nothing: the reason says which text is expected.
                must = str(reason) if _allowed(field) == _TEXT else f"{must} ({reason})"
            given = values.get(key, detail.get("input"))
            shown = f"{kind} setting {key}={_value_text(given)}"
            sentences.append(f"{shown} is refused: {must}")
    return InvalidRequest("; ".join(sentences))
