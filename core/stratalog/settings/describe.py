"""Settings as data: the meaning, value and source of each key, for DescribeConfigs and docs/configure.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Any, Literal

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from stratalog.settings.kafka_names import WITHOUT_EFFECT, shown_under_kafka_names
from stratalog.settings.load import environment_name
from stratalog.settings.process import ProcessSettings
from stratalog.settings.topic import PROCESS_DEFAULTS, TopicSettings
from stratalog.settings.units import INT32_MAX
from stratalog.settings.wrong_values import allowed_words, bounds_of, fields_by_key


class SettingSource(IntEnum):
    """Who set a value; the numbers are those of Kafka's DescribeConfigs."""

    TOPIC = 1
    PROCESS = 4
    DEFAULT = 5


class SettingType(IntEnum):
    """A value's type; the numbers are those of Kafka's DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5


@dataclass(frozen=True, slots=True)
class SettingDescription:
    """What a key is. `default` is None for a topic's key that inherits `process_key`."""

    key: str
    scope: Literal["process", "topic"]
    type: SettingType
    default: str | None
    process_key: str | None
    low: int | None
    high: int | None
    words: tuple[str, ...]
    description: str
    environment: str | None


@dataclass(frozen=True, slots=True)
class Synonym:
    key: str
    value: str
    source: SettingSource


@dataclass(frozen=True, slots=True)
class SettingValue:
    """What a key is set to. `synonyms` lists every layer that gives a value, the one in force first."""

    key: str
    value: str
    source: SettingSource
    type: SettingType
    description: str
    is_read_only: bool
    synonyms: tuple[Synonym, ...]

    @property
    def is_default(self) -> bool:
        return self.source is SettingSource.DEFAULT


def value_text(value: object) -> str:
    """A value as users write it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value.value if isinstance(value, Enum) else value)


def _type_of(field: FieldInfo) -> SettingType:
    if field.annotation is bool:
        return SettingType.BOOLEAN
    if field.annotation is int:
        high = bounds_of(field)[1]
        return SettingType.INT if high is not None and high <= INT32_MAX else SettingType.LONG
    return SettingType.STRING


def _described(model: type[BaseModel], scope: Literal["process", "topic"]) -> list[SettingDescription]:
    process_keys = {attribute: key for key, (attribute, _) in fields_by_key(ProcessSettings).items()}
    described = []
    for key, (attribute, field) in fields_by_key(model).items():
        inherited = PROCESS_DEFAULTS.get(attribute) if scope == "topic" else None
        low, high = bounds_of(field)
        described.append(
            SettingDescription(
                key=key,
                scope=scope,
                type=_type_of(field),
                default=None if field.is_required() else value_text(field.default),
                process_key=process_keys[inherited] if inherited else None,
                low=low,
                high=high,
                words=allowed_words(field),
                description=field.description or "",
                environment=environment_name(key) if scope == "process" else None,
            )
        )
    return described


def describe_settings() -> tuple[SettingDescription, ...]:
    """Every key there is: the process's in the order of their declaration, then the topics'."""
    return (*_described(ProcessSettings, "process"), *_described(TopicSettings, "topic"))


def describe_process(settings: ProcessSettings) -> tuple[SettingValue, ...]:
    """What the process runs with, for DescribeConfigs of a broker. Fixed at start, hence read-only."""
    values = []
    for key, (attribute, field) in fields_by_key(ProcessSettings).items():
        synonyms = _process_synonyms(settings, key, attribute, field)
        values.append(_value(key, field, synonyms, is_read_only=True))
    return tuple(values)


def describe_topic(settings: ProcessSettings, overrides: Mapping[str, str]) -> tuple[SettingValue, ...]:
    """What holds for a topic with these stored overrides, for DescribeConfigs of a topic."""
    resolved = TopicSettings.resolve(settings, overrides)
    process_fields = {attribute: (key, field) for key, (attribute, field) in fields_by_key(ProcessSettings).items()}
    values = []
    for key, (attribute, field) in fields_by_key(TopicSettings).items():
        synonyms: list[Synonym] = []
        in_force = value_text(getattr(resolved, attribute))
        if key in overrides:
            synonyms.append(Synonym(key, in_force, SettingSource.TOPIC))
        if inherited := PROCESS_DEFAULTS.get(attribute):
            process_key, process_field = process_fields[inherited]
            synonyms += _process_synonyms(settings, process_key, inherited, process_field)
        else:
            synonyms.append(Synonym(key, value_text(field.default), SettingSource.DEFAULT))
        if synonyms[0].value != in_force:
            # Inherited, but bent by the topic's own setting (a local retention follows a shorter total one).
            synonyms.insert(0, Synonym(key, in_force, SettingSource.TOPIC))
        values.append(_value(key, field, synonyms, is_read_only=False))
    return (*values, *_under_kafkas_names(values, overrides))


def _under_kafkas_names(values: list[SettingValue], overrides: Mapping[str, str]) -> list[SettingValue]:
    """Whoever set one finds it again, and what it does."""
    by_key = {one.key: one for one in values}
    shown = []
    for key, (name, value) in shown_under_kafka_names({key: one.value for key, one in by_key.items()}).items():
        source = by_key[name].source
        synonyms, words = (Synonym(key, value, source),), f"Kafka's name for {name}."
        shown.append(SettingValue(key, value, source, SettingType.STRING, words, False, synonyms))
    for key in sorted(overrides.keys() & WITHOUT_EFFECT.keys()):
        value, words = overrides[key], f"No effect: {WITHOUT_EFFECT[key]}."
        synonyms = (Synonym(key, value, SettingSource.TOPIC),)
        shown.append(SettingValue(key, value, SettingSource.TOPIC, SettingType.STRING, words, False, synonyms))
    return shown


def _process_synonyms(settings: ProcessSettings, key: str, attribute: str, field: FieldInfo) -> list[Synonym]:
    synonyms = [Synonym(key, value_text(field.default), SettingSource.DEFAULT)]
    if attribute in settings.model_fields_set:
        synonyms.insert(0, Synonym(key, value_text(getattr(settings, attribute)), SettingSource.PROCESS))
    return synonyms


def _value(key: str, field: FieldInfo, synonyms: list[Synonym], *, is_read_only: bool) -> SettingValue:
    first = synonyms[0]
    description: Any = field.description or ""
    return SettingValue(key, first.value, first.source, _type_of(field), description, is_read_only, tuple(synonyms))
