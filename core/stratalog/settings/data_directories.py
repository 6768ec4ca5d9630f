"""The settings of one process that say where its sealed segments are kept besides the directory of --data.

Part of `ProcessSettings`.
"""

from __future__ import annotations

from typing import Annotated, Self, TypeAlias

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from stratalog.model.data_directories import DirectorySpec, parse_directories
from stratalog.settings.security import SecuritySettings
from stratalog.settings.units import GIB, HOUR_MS, INT64_MAX, KIB, MIB
from stratalog.settings.wrong_values import key_of


def _directories(value: str) -> str:
    parse_directories(value)
    return value


DataDirectories: TypeAlias = Annotated[str, AfterValidator(_directories)]
"""CLASS:PATH of further data directories, with commas; empty: none."""


class DataDirectorySettings(SecuritySettings):
    """See `ProcessSettings`."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=key_of, populate_by_name=True)

    data_dirs: DataDirectories = Field(
        default="",
        max_length=16_384,
        description="Further data directories for sealed segments, each on a disk of its own: CLASS:PATH, separated by "
        "commas, such as hdd:/data2. They are filled in this order. Everything else stays in the directory of --data. "
        "Empty: none (docs/several-disks.md).",
    )
    data_drain_dirs: str = Field(
        default="",
        max_length=16_384,
        description="Paths of directories in data.dirs, separated by commas, whose sealed segments move to the other "
        "directories. Once a directory is empty, remove it from both settings. Empty: none.",
    )
    data_move_after_ms: int = Field(
        default=1 * HOUR_MS,
        ge=-1,
        le=INT64_MAX,
        description="A sealed segment moves to a directory of data.dirs this long after its seal; -1: only while less "
        "than data.move.free.bytes is free.",
    )
    data_move_free_bytes: int = Field(
        default=1 * GIB,
        ge=0,
        le=INT64_MAX,
        description="While the directory of --data has less free space than this, the oldest sealed segments move to "
        "a directory of data.dirs, whatever their age.",
    )
    data_move_bytes_per_second: int = Field(
        default=16 * MIB,
        ge=64 * KIB,
        le=INT64_MAX,
        description="Maximum bytes per second that moves to the directories of data.dirs write and read back. Each "
        "byte of a copy counts twice.",
    )

    @model_validator(mode="after")
    def _check_drained(self) -> Self:
        strange = self.drained_directories - {one.path for one in self.further_directories}
        if strange:
            raise ValueError(f"data.drain.dirs: {', '.join(sorted(strange))} is not in data.dirs")
        return self

    @property
    def drained_directories(self) -> frozenset[str]:
        """Paths of the further data directories that are to become empty."""
        paths = (one.strip().rstrip("/") for one in self.data_drain_dirs.split(","))
        return frozenset(path for path in paths if path)

    @property
    def further_directories(self) -> tuple[DirectorySpec, ...]:
        """The data directories besides the first."""
        return parse_directories(self.data_dirs)
