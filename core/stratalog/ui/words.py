"""Words and numbers of the pages: what each kind of trouble means and asks for, and the filters of templates. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from stratalog.admin_api.wording import human_bytes, human_duration, human_time
from stratalog.machines.plans.shard_troubles import TroubleKind
from stratalog.telemetry.printable import printable

TROUBLES: Final[Mapping[str, tuple[str, str]]] = {
    TroubleKind.NO_LEADER: (
        "No leader: the shard takes no writes",
        "Start the nodes that are named. Only if their disks are lost for good: stratalog recover TOPIC --shard N",
    ),
    TroubleKind.NO_SOURCE: (
        "The end of a segment is not known, so it cannot be sealed or read to its end",
        "Start the nodes that are named. Only if their disks are lost for good: stratalog recover TOPIC --shard N",
    ),
    TroubleKind.NO_COPY: (
        "No living node has a copy, and the object store has none that may be read",
        "Start one of the nodes that are named, or allow reads from the object store (remote.read.policy)",
    ),
    TroubleKind.NO_PRODUCERS: (
        "Writes are refused, because the state of producers is only on nodes that are down",
        "Start one of the nodes that are named",
    ),
    TroubleKind.BELOW_MIN_IN_SYNC: (
        "Fewer replicas are in sync than min.insync.replicas: acks=all is refused or waits",
        "Start the nodes that are named, and see their logs if they run",
    ),
    TroubleKind.GIVEN_UP: (
        "A range of offsets was given up, or may have been lost",
        "Tell the owners of the data. The range stays listed until retention has passed it",
    ),
    TroubleKind.COPY_DIFFERS: (
        "A copy differs from the sealed segment and is not served",
        "Check the disk of the node that is named. The copy is made again from a good one",
    ),
    TroubleKind.NOT_SEALED: (
        "A segment ended a while ago and is not sealed",
        "See the logs of the nodes that are named: they live, and have not reported their copies",
    ),
    TroubleKind.TOO_FEW_REPLICAS: (
        "Written to fewer replicas than the topic asks for",
        "Start or add nodes. Replicas are filled up when enough nodes are alive",
    ),
    TroubleKind.NOT_IN_SYNC: (
        "A replica is behind, the others suffice",
        "Nothing, if a node was just started. If it lasts, see the log of the node that is named",
    ),
    TroubleKind.TOO_FEW_COPIES: (
        "Sealed segments have fewer copies than the topic asks for",
        "Start or add nodes. Copies are made again by themselves",
    ),
}
PLACE_WORDS: Final[Mapping[str, str]] = {
    "open": "being written",
    "local": "nodes",
    "both": "nodes, object store",
    "cold": "object store",
    "nowhere": "nowhere",
}
GOOD_STATES: Final = frozenset({"alive", "serving", "ready", "Stable", "sealed"})
BAD_STATES: Final = frozenset({"not alive", "silent", "stuck", "waiting", "ended", "not ready", "Dead", "nowhere"})


def plain(value: object) -> str:
    """Text of others, with what steers a reader (control characters, bidirectional marks) spelled out."""
    return printable(str(value))


def count(value: int | None, thing: str = "") -> str:
    if value is None or value < 0:
        return "–"
    if not thing:
        return f"{value:,}"
    return f"{value:,} {thing}{'' if value == 1 else 's'}"


def size(value: float | None) -> str:
    return "–" if value is None or value < 0 else human_bytes(round(value))


def rate(value: float | None) -> str:
    return "–" if value is None or value < 0 else f"{human_bytes(round(value))}/s"


def duration_ms(value: int | None) -> str:
    return "–" if value is None or value < 0 else human_duration(value // 1_000)


def moment(value: int | None) -> str:
    return "–" if value is None or value < 0 else human_time(value)


def second(value: int | None) -> str:
    """To the second."""
    text = moment(value)
    return text.partition(".")[0] if "." in text else text


def tone(state: str) -> str:
    """The class of a badge."""
    return "ok" if state in GOOD_STATES else "bad" if state in BAD_STATES else "warn"


FILTERS: Final[Mapping[str, Callable[..., Any]]] = {
    "plain": plain,
    "count": count,
    "size": size,
    "rate": rate,
    "duration": duration_ms,
    "moment": moment,
    "second": second,
    "tone": tone,
}
