"""A small etcd for the operator's plan: members start, or refuse to, as their files and their disks say.

It fails the test if a member starts under an id without that id's log, or if members are changed while most of the
others do not serve.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from stratalog_operator.plan.observed import SeenClaim, SeenEtcd, SeenEtcdMember, SeenPod

_PREFIX = "main-etcd-"


@dataclass
class SmallEtcd:
    claims: dict[str, SeenClaim] = field(default_factory=dict)
    logs: dict[str, str] = field(default_factory=dict)
    """By the UID of a claim: the member whose log is on it."""
    listed: dict[int, SeenEtcdMember] = field(default_factory=dict)
    files: dict[str, Any] = field(default_factory=dict)
    """Of each pod, as they are mounted in one that starts now."""
    numbers: int = 0
    version: str = "3.6.16"
    """Of all members."""

    def __copy__(self) -> SmallEtcd:
        made = (dict(self.claims), dict(self.logs), dict(self.listed), dict(self.files), self.numbers, self.version)
        return SmallEtcd(*made)

    def observe(self) -> SeenEtcd | None:
        return SeenEtcd(tuple(self.listed.values())) if self._serves(self.listed.values()) else None

    def _serves(self, members: Iterable[SeenEtcdMember]) -> bool:
        voters = [one for one in members if not one.is_learner]
        return sum(one.is_healthy for one in voters) > len(voters) // 2

    def read_files(self, data: dict[str, str]) -> None:
        self.files = {name.removesuffix(".yaml"): json.loads(text) for name, text in data.items()}

    def kubelet(self, pods: dict[str, SeenPod], new_uid: Callable[[str], str], now: str) -> None:
        """Makes claims, and starts pods where etcd would."""
        for name, claim in list(self.claims.items()):
            if claim.is_leaving and not claim.is_held and name.removeprefix("data-") not in pods:
                del self.claims[name]
            elif not claim.is_leaving:
                self.claims[name] = replace(claim, is_bound=True)
        serving = set()
        for pod in [one for one in pods.values() if one.name.startswith(_PREFIX) and not one.is_leaving]:
            number = int(pod.name.removeprefix(_PREFIX))
            claim = self.claims.setdefault(
                f"data-{pod.name}", self._new_claim(f"data-{pod.name}", new_uid("etcd-claim"), number, now)
            )
            is_up = not claim.is_leaving and self._starts(number, pod.name, claim.uid)
            pods[pod.name] = replace(pod, is_ready=pod.is_ready and is_up, is_failing=not is_up)
            if is_up:
                serving.add(self.logs[claim.uid])
        self.listed = {
            number: replace(
                one, is_healthy=one.member_id in serving, version=self.version if one.member_id in serving else ""
            )
            for number, one in sorted(self.listed.items())
        }

    def _new_claim(self, name: str, uid: str, number: int, now: str) -> SeenClaim:
        return SeenClaim(name, uid, "", number, is_bound=True, created=now, volume=f"volume-of-{uid}")

    def _starts(self, number: int, name: str, disk: str) -> bool:
        member = self.listed.get(number)
        if disk in self.logs:
            return member is not None and member.member_id == self.logs[disk]
        told = self.files[name]
        named = [one.split("=")[0] for one in told["initial-cluster"].split(",")]
        if name not in named:
            return False
        if told["initial-cluster-state"] == "new":
            if member is not None:
                # It asks the others whether it has been a member before; etcd 3.6.16 starts where they do not answer.
                assert self._serves(self.listed.values()), (
                    f"{name} starts as {member.member_id}, whose log it does not have, for the others do not answer"
                )
                return False
            self.listed[number] = SeenEtcdMember(number, self._new_id(), is_started=True)
        else:
            if member is None or len(named) != len(self.listed):
                return False
            assert not member.is_started, f"{name} starts as {member.member_id}, whose log it does not have"
            self.listed[number] = replace(member, is_started=True)
        self.logs[disk] = self.listed[number].member_id
        return True

    def _new_id(self) -> str:
        self.numbers += 1
        return f"{self.numbers:x}"

    # What is asked of it ----------------------------------------------------------------------------------------------
    def remove(self, member_id: str) -> None:
        (number,) = [number for number, one in self.listed.items() if one.member_id == member_id]
        del self.listed[number]
        assert self._serves(self.listed.values()), (
            f"member {member_id} was removed, and most of the others do not serve"
        )

    def add(self, number: int) -> None:
        assert self._serves(self.listed.values()), "a member was added, and most of the others do not serve"
        self.listed[number] = SeenEtcdMember(number, self._new_id(), is_started=False, is_learner=True)

    def promote(self, member_id: str) -> None:
        (number,) = [number for number, one in self.listed.items() if one.member_id == member_id]
        assert self.listed[number].is_healthy, f"{member_id} gets a vote, and does not serve"
        name = f"{_PREFIX}{number}"
        assert name not in self.files[name]["initial-cluster"], (
            "it could start once more on an empty volume, with a vote"
        )
        self.listed[number] = replace(self.listed[number], is_learner=False)
