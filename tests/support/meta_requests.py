"""Records the requests of the operator to the meta service, in tests."""

from __future__ import annotations

from typing import Any

from stratalog.model.retirement import RetireMode
from stratalog.model.rights import Rule
from stratalog.model.scram import CredentialName


class RecordedRequests:
    """`wishes`: the requests so far."""

    def __init__(self) -> None:
        self.wishes: list[tuple[Any, ...]] = []

    async def retire(
        self, node_id: int, mode: RetireMode, force_storage_id: str | None, force_absence: int | None
    ) -> None:
        self.wishes.append(("retire", node_id, mode, force_storage_id, force_absence))

    async def cancel(self, node_id: int) -> None:
        self.wishes.append(("cancel", node_id))

    async def end_mount(self, mount: str) -> None:
        self.wishes.append(("end", mount))

    async def make_rules(self, rules: tuple[Rule, ...]) -> None:
        self.wishes.append(("make-rules", rules))

    async def remove_rules(self, rules: tuple[Rule, ...]) -> None:
        self.wishes.append(("remove-rules", rules))

    async def remove_credentials(self, names: tuple[CredentialName, ...]) -> None:
        self.wishes.append(("remove-credentials", names))
