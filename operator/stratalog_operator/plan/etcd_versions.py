"""Whether the etcd that the operator runs is of a version that may lose data, and what is not done with one.

What its members answered counts; before they have answered, the tag of the image does. A version that may lose data is
used only where a person said so (`meta.etcd.trial`). A cluster without storage nodes gets none as long as its etcd is
such a one or of an unknown version. One that has nodes keeps what it has, and its condition says what to do.

Pure. Source: docs/operator.md section 5.
"""

from __future__ import annotations

import re
from typing import Final

from stratalog.model.etcd_versions import FIRST_SAFE, is_affected, parse_version
from stratalog_operator.plan.observed import Observed

_TAG: Final = re.compile(r":([^:/@]+)(?:@.*)?$")


def stated_version(image: str) -> str:
    """The version that the tag of an image states; empty where it states none."""
    found = _TAG.search(image)
    return found[1] if found is not None and parse_version(found[1]) is not None else ""


def why_affected(seen: Observed) -> str:
    """What is wrong with the version of etcd, and what to do; empty where nothing is, or where a person accepts it."""
    etcd = seen.cluster.spec.meta.etcd
    if etcd is None or etcd.trial:
        return ""
    noted = seen.cluster.status.etcd_members
    found = next((f"{one.name} is etcd {one.version}" for one in noted if is_affected(one.version)), "")
    stated = stated_version(etcd.image or "")
    if not found and not any(one.version for one in noted) and is_affected(stated):
        found = f"image {etcd.image} is etcd {stated}"
    if not found:
        return ""
    return (
        f"{found}, which may lose data after a kill under load: give an etcd.image of {FIRST_SAFE} or later, an etcd "
        "of your own (meta.external), or say meta.etcd.trial: true for a trial"
    )


def why_no_first_node(seen: Observed) -> str:
    """Why a cluster that has no storage nodes gets none yet; empty where it may, and where it has some."""
    etcd = seen.cluster.spec.meta.etcd
    if etcd is None or etcd.trial or seen.nodes:
        return ""
    if why := why_affected(seen):
        return why
    noted = seen.cluster.status.etcd_members
    if etcd.image is None or stated_version(etcd.image) or any(one.version for one in noted):
        return ""
    return f"image {etcd.image} states no version of etcd: its members have to answer theirs first"
