"""Options that several commands share, as the fields of a dataclass: a command takes one parameter of that class, and
typer reads each field as an option of its own."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from typing import Any, get_type_hints


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """The command as typer takes it. Names of fields and of its other parameters differ; each field has a default."""
    signature = inspect.signature(command, eval_str=True)
    found = {name: one.annotation for name, one in signature.parameters.items()}
    groups: dict[str, Any] = {name: kind for name, kind in found.items() if is_dataclass(kind)}
    parameters = [part for one in signature.parameters.values() for part in _parts(one, groups)]

    @wraps(command)
    def run(**given: Any) -> None:
        made = {
            name: group(**{one.name: given.pop(one.name) for one in fields(group)}) for name, group in groups.items()
        }
        command(**given, **made)

    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # read by inspect
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run


def _parts(one: inspect.Parameter, groups: dict[str, Any]) -> list[inspect.Parameter]:
    if one.name not in groups:
        return [one]
    group = groups[one.name]
    hints = get_type_hints(group, include_extras=True)
    assert all(field.default is not MISSING for field in fields(group)), f"{group.__name__}: a field has no default"
    return [
        inspect.Parameter(field.name, one.kind, default=field.default, annotation=hints[field.name])
        for field in fields(group)
    ]
