"""The page for who runs it explains every state that the product tells of, and names metrics that there are."""

from __future__ import annotations

import re

from stratalog.machines.leading.shard_life import StopCause
from stratalog.machines.plans.shard_troubles import TroubleKind
from stratalog.model.retirement import WaitReason
from stratalog.model.segment import GapReason
from support.source_tree import PRODUCT_ROOTS, REPOSITORY, python_files

PAGE = (REPOSITORY / "docs" / "operate.md").read_text(encoding="utf-8")


def test_every_trouble_and_every_stop_is_explained() -> None:
    told = [
        *TroubleKind,
        *WaitReason,
        *(cause for cause in StopCause if cause is not StopCause.DELETED),
        GapReason.RESTARTED,
    ]
    assert not [word.value for word in told if f"`{word.value}`" not in PAGE]


def test_every_metric_that_it_names_exists() -> None:
    source = "\n".join(path.read_text(encoding="utf-8") for path in python_files(PRODUCT_ROOTS))
    named = set(re.findall(r"\bstratalog_[a-z_]+", PAGE))
    missing = {
        name
        for name in named
        if not any(f" {field}: int = " in source for field in _fields(name)) and name not in source
    }
    assert named and not missing


def _fields(name: str) -> list[str]:
    """What the field behind a metric may be called: its name without one group or two, and without `_total`."""
    shown = name.removesuffix("_total")
    fields = (shown, shown.removesuffix("_seconds") + "_ms") if shown.endswith("_seconds") else (shown,)
    return ["_".join(field.split("_")[first:]) for field in fields for first in (2, 3)]
