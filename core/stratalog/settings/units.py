"""Sizes and times as numbers, so that a default reads as its meaning."""

from __future__ import annotations

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

SECOND_MS = 1000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
