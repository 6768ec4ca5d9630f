"""Plans each object by itself: an error in the plan of one object leaves all others their plans.

Each object is written by another person, and a damaged or hostile one may uncover a fault of the operator. It must not
end the pass over all others: rights have to be revoked there, and pods restarted. Nothing is done about that object,
its status stays, and `Reconciled` says why. The pass logs where the error came from.

Pure, but that it collects what it caught.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any, Final, TypeVar

from stratalog_operator.plan.failures import Subject, objects_of, words_of
from stratalog_operator.plan.observed import Observed
from stratalog_operator.plan.scope import Word, complete
from stratalog_operator.resources.conditions import ConditionStatus, ConditionType, merge
from stratalog_operator.resources.schema import Part

PlannedT = TypeVar("PlannedT")
_FRAMES: Final = 5


class Faults:
    """Of one pass."""

    def __init__(self) -> None:
        self.found: dict[Subject, Exception] = {}
        """By the object: the first error that it caused."""

    def guarded(self, kind: str, name: str, planned: Callable[[], PlannedT], otherwise: PlannedT) -> PlannedT:
        """What `planned` returns; `otherwise` after an error, which is noted."""
        try:
            return planned()
        except Exception as error:
            self.found.setdefault((kind, name), error)
            return otherwise

    def told(self, seen: Observed, statuses: dict[Subject, Part]) -> dict[Subject, Part]:
        """The statuses of a pass, with what its errors were about."""
        objects, told = objects_of(seen), dict(statuses)
        for subject, error in self.found.items():
            one = objects[subject]
            status: Any = told.pop(subject, one.status)
            words: Word = (ConditionStatus.FALSE, "Error", why_fault(error))
            given = complete(subject[0], {**words_of(status.conditions), ConditionType.RECONCILED: words})
            conditions = merge(one.status.conditions, given, one.generation, seen.now)
            after = status.model_copy(update={"conditions": conditions})
            if after != one.status:
                told[subject] = after
        return told


def why_fault(error: Exception) -> str:
    """The type of the error alone: its text may have a part of a Secret."""
    kind = type(error).__name__
    return f"nothing was changed, because of a fault in the operator ({kind}): report it, with what its log says"


def where_fault(error: Exception) -> dict[str, str]:
    """For the log: the type of the error and the lines that led to it, without its text."""
    frames = traceback.extract_tb(error.__traceback__)[-_FRAMES:]
    return {"error": type(error).__name__, "at": " > ".join(f"{one.name}:{one.lineno}" for one in frames)}
