"""The entries of ApiVersions for the APIs that a node serves."""

from __future__ import annotations

from typing import NamedTuple


class AdvertisedApi(NamedTuple):
    key: int
    min_version: int
    max_version: int
