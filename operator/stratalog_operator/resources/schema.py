"""The base of all models of the kinds, and the words by which they describe themselves to Kubernetes.

Every string, list and map has a bound: the cost of a CEL rule is estimated from them, and a definition whose rules
might be too dear is refused. A rule carries the sentence that a person reads who broke it.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema
from pydantic.alias_generators import to_camel

NAME_PATTERN: Final = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
SHORT_NAME: Final = 20
"""Longest name of a cluster or pool. A node's name contains both, and names derived from it must fit into a label."""
QUANTITY_PATTERN: Final = r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$"


class Part(BaseModel):
    """A piece of an object. Unknown fields are passed over: a newer definition may say more."""

    model_config = ConfigDict(frozen=True, extra="ignore", alias_generator=to_camel, populate_by_name=True)


def rule(expression: str, message: str) -> dict[str, str]:
    """A CEL rule. The message is a sentence, and says what to do."""
    return {"rule": expression, "message": message}


def rules(*given: dict[str, str]) -> dict[str, Any]:
    """For `json_schema_extra`, of a field or a model."""
    return {"x-kubernetes-validations": list(given)}


def checked(*given: dict[str, str]) -> ConfigDict:
    """For `model_config` of a model with rules that look at several of its fields."""
    return ConfigDict(json_schema_extra=rules(*given))


def immutable(what: str, instead: str) -> dict[str, Any]:
    return rules(rule("self == oldSelf", f"{what} cannot be changed: {instead}"))


def not_empty(what: str) -> dict[str, str]:
    """Of the size of a volume."""
    return rule("quantity(string(self)).isGreaterThan(quantity('0'))", f"{what} must be greater than 0, such as 100Gi")


def keyed_by(*keys: str) -> dict[str, Any]:
    """A list that is a map: these fields identify an entry."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}


AS_SET: Final[dict[str, Any]] = {"x-kubernetes-list-type": "set"}

Name: TypeAlias = Annotated[str, Field(min_length=1, max_length=63, pattern=NAME_PATTERN)]
ShortName: TypeAlias = Annotated[str, Field(min_length=1, max_length=SHORT_NAME, pattern=NAME_PATTERN)]
SecretName: TypeAlias = Annotated[str, Field(min_length=1, max_length=253)]
Time: TypeAlias = Annotated[str, WithJsonSchema({"type": "string", "format": "date-time", "maxLength": 64})]
"""As Kubernetes writes it: RFC 3339."""
Quantity: TypeAlias = Annotated[
    str,
    Field(coerce_numbers_to_str=True),
    WithJsonSchema(
        {
            "x-kubernetes-int-or-string": True,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "pattern": QUANTITY_PATTERN,
            "maxLength": 32,
        }
    ),
]
Count: TypeAlias = Annotated[int, Field(ge=0)]


class Resources(Part):
    """As of a container."""

    requests: Annotated[dict[str, Quantity], Field(max_length=8)] = Field(
        default={}, description="Resources that the container is guaranteed, such as cpu and memory."
    )
    limits: Annotated[dict[str, Quantity], Field(max_length=8)] = Field(
        default={}, description="Resources that the container cannot exceed, such as memory."
    )


class Toleration(Part):
    """Of a taint, as of a pod."""

    key: str | None = Field(default=None, max_length=316, description="Key of the taint. Default: every taint.")
    operator: str | None = Field(default=None, max_length=16, description="Exists or Equal. Default: Equal.")
    value: str | None = Field(default=None, max_length=63, description="Value of the taint, with Equal.")
    effect: str | None = Field(default=None, max_length=32, description="Effect of the taint. Default: every effect.")
    toleration_seconds: int | None = Field(
        default=None, ge=0, description="With NoExecute: how long the taint is tolerated."
    )
