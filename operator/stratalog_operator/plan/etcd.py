"""The etcd that the operator runs: guards its claims, and lets a member whose volume is lost join again.

A member is known by its id and by the claim that has its log. Once the members have served together, both are noted in
the status, and the id on the claim as well: a cluster that is made again over its claims has no status. There, too, a
member without its log must not start under its old id: the others start at the same time and cannot tell it that it
forgot something. A member that is listed under a noted id and has another claim has lost its log. The operator removes
it and adds it as a learner under a new id; it starts on the empty volume, catches up, and gets its vote. Members are
changed only with proof that most of the others serve. Each step follows from what etcd lists, so the operator continues
where it was after a kill, and also after a person removed and added the member.

Members that spoke plain text with each other change over without losing a majority: all of them are restarted, one
after the other, to listen for TLS as well; then each is listed under its other URL, one after the other, while all
serve; then they are restarted to listen for TLS alone. What is under way follows from the status and from what etcd
lists.

Pure. Source: docs/operator.md section 5.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from stratalog.model.counting import counted
from stratalog_operator.plan.actions import (
    AddEtcdMember,
    NoteMember,
    Offer,
    PromoteEtcdMember,
    RemoveEtcdMember,
    StopPod,
    UpdateEtcdMember,
)
from stratalog_operator.plan.decisions import release_value
from stratalog_operator.plan.guards import guarding
from stratalog_operator.plan.observed import Observed, SeenClaim, SeenEtcd, SeenEtcdMember
from stratalog_operator.plan.scope import apply_missing, cluster_of, wanted_hash
from stratalog_operator.resources.cluster import EtcdMember
from stratalog_operator.resources.names import ANNOTATION_RELEASE_FINALIZER
from stratalog_operator.specs.etcd import (
    Formation,
    etcd_config_map,
    etcd_objects,
    joining_url,
    member_claim,
    member_name,
    peer_url,
)
from stratalog_operator.specs.objects import Cluster, EtcdPeers, template_hash

_WAYS_OUT: Final = "see docs/operate.md, section etcd"


@dataclass(frozen=True, slots=True)
class EtcdPlan:
    offer: Offer = field(default_factory=Offer)
    members: tuple[EtcdMember, ...] = ()
    """To be noted in the status."""
    stalled: str = ""
    """Why a member cannot come back without a person, in words."""
    is_busy: bool = False
    """Members form a cluster, one joins, or they change over to TLS."""
    peers: str = ""
    """What they speak with each other, to be noted in the status. Empty: as it says."""


def needs_etcd_state(seen: Observed) -> bool:
    """Whether etcd is to be asked: not while all is as it was noted."""
    etcd = seen.cluster.spec.meta.etcd
    if etcd is None or not seen.etcd_claims:
        return False
    if not _is_formed(seen):
        return True
    cluster = cluster_of(seen)
    if cluster.etcd_peers is EtcdPeers.MIGRATING:
        return True
    manifest = etcd_config_map(cluster, etcd, Formation(is_formed=True))
    if seen.hashes.get(("ConfigMap", cluster.etcd_name)) != wanted_hash(manifest):
        return True
    if not all(one.votes for one in seen.cluster.status.etcd_members):
        return True
    return any(
        _is_unwell(seen, number)
        or not _has_its_claim(seen, number)
        or not _has_told_its_version(seen, number)
        or not _is_on_its_claim(seen, number)
        for number in range(etcd.replicas)
    )


def plan_etcd(seen: Observed) -> EtcdPlan:
    etcd = seen.cluster.spec.meta.etcd
    noted = seen.cluster.status.etcd_members
    if etcd is None:
        return EtcdPlan(members=noted)
    cluster, offer = cluster_of(seen), Offer()
    for claim in seen.etcd_claims:
        offer.add(guarding(claim))
    members = noted if seen.etcd is None else _noted(seen, seen.etcd)
    joining = {} if seen.etcd is None else _joining(seen, seen.etcd)
    if seen.etcd is not None:
        offer.add(_notes(seen, seen.etcd, members))
    listed = {} if seen.etcd is None or not joining else _listed(cluster, seen.etcd)
    formation = Formation(is_formed=bool(members) or _is_formed(seen), joining=joining, listed=listed)
    files = apply_missing(seen, [etcd_config_map(cluster, etcd, formation)], "the members of etcd read it")
    # The claims keep their guard first: nothing of what follows is done with a claim that could go.
    is_busy, peers = needs_etcd_state(seen), cluster.etcd_peers.value
    planned = EtcdPlan(Offer([*files.actions, *offer.actions]), members, is_busy=is_busy, peers=peers)
    if not _is_formed(seen):
        return planned
    if seen.etcd is None:
        return replace(planned, stalled=_why_no_member_answers(seen) or _why_held(seen))
    step = next(
        (
            step
            for number in range(etcd.replicas)
            if (step := _rejoin(seen, seen.etcd, number, is_file_there=not files.actions)) is not None
        ),
        EtcdPlan(),
    )
    planned.offer.add(step.offer)
    if cluster.etcd_peers is EtcdPeers.MIGRATING and not (step.offer.actions or step.stalled or files.actions):
        changing = _changing_over(seen, cluster, seen.etcd)
        planned.offer.add(changing.offer)
        planned = replace(planned, peers=changing.peers)
    return replace(planned, stalled=step.stalled or _why_held(seen))


def _changing_over(seen: Observed, cluster: Cluster, etcd: SeenEtcd) -> EtcdPlan:
    """The next step from plain text to TLS among members: none while one of them does not serve, or has not started
    with a file by which it listens for both."""
    spec = cluster.spec.meta.etcd
    assert spec is not None, "it was asked"
    waits = EtcdPlan(peers=EtcdPeers.MIGRATING.value)
    members = [etcd.member(number) for number in range(spec.replicas)]
    if len(etcd.members) != spec.replicas or cluster.is_etcd_held:
        return waits
    wanted = template_hash(etcd_objects(cluster, spec)[-1])
    former: list[UpdateEtcdMember] = []
    for number, member in enumerate(members):
        pod = seen.pod_named(member_name(cluster, number))
        if member is None or not member.is_healthy or member.is_learner:
            return waits
        if pod is None or not pod.is_ready or pod.is_leaving or pod.pod_hash != wanted:
            return waits
        if member.peer_url != (url := peer_url(cluster, number)):
            former.append(UpdateEtcdMember(member.member_id, url))
    return EtcdPlan(Offer([former[0]]), peers=waits.peers) if former else EtcdPlan(peers=EtcdPeers.SSL.value)


def _listed(cluster: Cluster, etcd: SeenEtcd) -> dict[int, str]:
    """Members that are listed under another URL than they are to be."""
    found = ((one.number, one.peer_url) for one in etcd.members if one.number is not None and one.peer_url)
    return {number: url for number, url in found if url != peer_url(cluster, number)}


def _is_formed(seen: Observed) -> bool:
    """Also in an earlier life of the cluster: its claims say so."""
    return bool(seen.cluster.status.etcd_members) or any(claim.member_id for claim in seen.etcd_claims)


def _of(seen: Observed, number: int) -> EtcdMember | None:
    name = member_name(cluster_of(seen), number)
    noted = next((one for one in seen.cluster.status.etcd_members if one.name == name), None)
    claim = _claim(seen, number)
    if noted is None and claim is not None and claim.member_id:
        return EtcdMember(name=name, member_id=claim.member_id, claim_uid=claim.uid, volume=claim.volume)
    return noted


def _claim(seen: Observed, number: int) -> SeenClaim | None:
    return next((one for one in seen.etcd_claims if one.name == member_claim(cluster_of(seen), number)), None)


def _is_unwell(seen: Observed, number: int) -> bool:
    pod = seen.pod_named(member_name(cluster_of(seen), number))
    return pod is None or not pod.is_ready


def _has_its_claim(seen: Observed, number: int) -> bool:
    claim, known = _claim(seen, number), _of(seen, number)
    return claim is not None and known is not None and _has_log(claim, known)


def _has_log(claim: SeenClaim, known: EtcdMember) -> bool:
    """Another claim of the same volume has the log as well: a person gave the volume back."""
    return claim.uid == known.claim_uid or (known.volume != "" and claim.volume == known.volume)


def _is_on_its_claim(seen: Observed, number: int) -> bool:
    """That the claim says whose log it has."""
    claim, known = _claim(seen, number), _of(seen, number)
    return claim is not None and known is not None and claim.member_id == known.member_id


def _notes(seen: Observed, etcd: SeenEtcd, members: Iterable[EtcdMember]) -> Offer:
    """On the claims of members that serve with their vote: their log is there."""
    offer = Offer()
    names = {one.name: one for one in members}
    for claim in seen.etcd_claims:
        known, member = names.get(claim.name.removeprefix("data-")), etcd.member(claim.node_id)
        if known is None or member is None or claim.is_leaving or claim.uid != known.claim_uid:
            continue
        serves = member.member_id == known.member_id and member.is_healthy and not member.is_learner
        if serves and claim.member_id != known.member_id:
            offer.actions.append(NoteMember(claim.name, claim.uid, known.member_id))
    return offer


def _has_told_its_version(seen: Observed, number: int) -> bool:
    """The pod that runs now: another one may be of another image."""
    pod, known = seen.pod_named(member_name(cluster_of(seen), number)), _of(seen, number)
    return pod is not None and known is not None and known.pod_uid == pod.uid


def _noted(seen: Observed, etcd: SeenEtcd) -> tuple[EtcdMember, ...]:
    """Which claim each member id belongs to from now on. The first time, all members are noted together."""
    spec = seen.cluster.spec.meta.etcd
    assert spec is not None, "it was asked"
    found = [_note(seen, etcd.member(number), number) for number in range(spec.replicas)]
    if not _is_formed(seen) and None in found:
        return ()
    return tuple(one for one in found if one is not None)


def _note(seen: Observed, member: SeenEtcdMember | None, number: int) -> EtcdMember | None:
    """Noted again where it has another id, or serves with its vote: then its log is on that claim, also if a person put
    that one in the place of the old one. A member that was just added has no log, wherever it begins."""
    claim, known = _claim(seen, number), _of(seen, number)
    if member is None or claim is None or claim.is_leaving:
        return known
    serves = member.is_healthy and not member.is_learner
    is_new = not member.is_started if known is None else known.member_id != member.member_id
    if not (serves or is_new):
        return known
    name = member_name(cluster_of(seen), number)
    pod = seen.pod_named(name)
    has_told = bool(member.version) and pod is not None
    return EtcdMember(
        name=name,
        member_id=member.member_id,
        claim_uid=claim.uid,
        volume=claim.volume,
        votes=not member.is_learner,
        version=member.version if has_told or known is None else known.version,
        pod_uid=pod.uid if has_told and pod is not None else "" if known is None else known.pod_uid,
    )


def _joining(seen: Observed, etcd: SeenEtcd) -> dict[int, tuple[int, ...]]:
    """Members that are listed, have no log yet, and have been noted with the claim on which they are to begin."""
    there = tuple(sorted(one.number for one in etcd.members if one.number is not None))
    found = {}
    for one in etcd.members:
        known = None if one.number is None else _of(seen, one.number)
        if one.number is None or one.is_started or known is None or known.member_id != one.member_id:
            continue
        if _has_its_claim(seen, one.number):
            found[one.number] = there
    return found


def _why_held(seen: Observed) -> str:
    """Of a claim that a person deleted and has not given up."""
    held = next((one for one in seen.etcd_claims if one.is_leaving and one.is_held), None)
    if held is None:
        return ""
    return (
        f"claim {held.name} was deleted and is held back, because it has metadata; if its disk is lost, annotate it: "
        f"kubectl annotate pvc {held.name} --overwrite {ANNOTATION_RELEASE_FINALIZER}={release_value(held)}"
    )


def _why_no_member_answers(seen: Observed) -> str:
    """What keeps etcd from answering and does not pass by itself; empty where it may."""
    lost = [
        known.name
        for known in seen.cluster.status.etcd_members
        for claim in seen.etcd_claims
        if claim.name == f"data-{known.name}" and not _has_log(claim, known)
    ]
    if not lost or not needs_etcd_state(seen):
        return ""
    return f"no majority of etcd's members answers, and {', '.join(lost)} lost the volume: {_WAYS_OUT}"


def _rejoin(seen: Observed, etcd: SeenEtcd, number: int, *, is_file_there: bool) -> EtcdPlan | None:
    """The next step of a member whose volume is lost; None for one that needs nothing.

    `is_file_there`: the members' files are as they are to be."""
    claim, known, member = _claim(seen, number), _of(seen, number), etcd.member(number)
    if claim is None or claim.is_leaving:
        return None
    lacking = _why_no_change(seen, etcd, number)
    if member is None:
        if lacking:
            return EtcdPlan(stalled=lacking)
        return EtcdPlan(Offer([AddEtcdMember(number, joining_url(cluster_of(seen), number))]))
    if known is None and member.is_started:
        return _unknown(seen, member, number, claim, lacking)
    if known is None or known.member_id != member.member_id:
        return EtcdPlan()  # noted first
    if not _has_log(claim, known):
        if member.is_healthy or not _is_unwell(seen, number):
            return None  # it has its log: a person restored it
        if lacking:
            return EtcdPlan(stalled=lacking)
        why = f"the claim of {known.name} is another one than the one that had its log"
        return EtcdPlan(Offer([RemoveEtcdMember(member.member_id, why)]))
    if not member.is_started:
        if claim.member_id not in ("", member.member_id):
            return EtcdPlan(stalled=_why_old_log(known.name, claim))
        cluster = cluster_of(seen)
        if cluster.etcd_peers is EtcdPeers.SSL and member.peer_url != (url := peer_url(cluster, number)):
            # A person added it: it will not listen there.
            return EtcdPlan(stalled=lacking) if lacking else EtcdPlan(Offer([UpdateEtcdMember(member.member_id, url)]))
        return _starting(seen, number, is_file_there=is_file_there)
    if member.is_learner and member.is_healthy and is_file_there:
        return EtcdPlan(Offer([PromoteEtcdMember(member.member_id)]))
    return None


def _why_old_log(name: str, claim: SeenClaim) -> str:
    """Of a member that was added again and whose claim says that it has the log of an earlier member."""
    return (
        f"claim {claim.name} has the log of member {claim.member_id}, which was removed: etcd does not start over it, "
        f"and the log is not needed. Let {name} begin on an empty volume: "
        f"kubectl delete pvc/{claim.name} pod/{name} --wait=false"
    )


def _unknown(seen: Observed, member: SeenEtcdMember, number: int, claim: SeenClaim, lacking: str) -> EtcdPlan:
    """A member that the other members list and that has no note, in a cluster that was made again over its claims. If
    it cannot start and its claim is younger than this cluster, its volume is lost. An older claim may have its log."""
    pod = seen.pod_named(member_name(cluster_of(seen), number))
    if member.is_healthy or pod is None or not pod.is_failing:
        return EtcdPlan()  # noted once it serves
    if not claim.created > seen.cluster.created:
        return EtcdPlan(
            stalled=f"{pod.name} does not start, and nothing says whose log claim {claim.name} has: {_WAYS_OUT}"
        )
    if lacking:
        return EtcdPlan(stalled=lacking)
    why = f"claim {claim.name} was made after this cluster, whose other members have served before"
    return EtcdPlan(Offer([RemoveEtcdMember(member.member_id, why)]))


def _starting(seen: Observed, number: int, *, is_file_there: bool) -> EtcdPlan:
    """Its file says that it may begin. A pod that crashes until then is started again at once, not in five minutes."""
    pod = seen.pod_named(member_name(cluster_of(seen), number))
    if not is_file_there or pod is None or not pod.is_failing or pod.is_leaving:
        return EtcdPlan()
    why = "its volume was lost, and it may begin on the new one"
    return EtcdPlan(Offer(disruptive=[StopPod(pod.name, pod.uid, why)]))


def _why_no_change(seen: Observed, etcd: SeenEtcd, number: int) -> str:
    """Why the members cannot be changed; empty with the proof that most of the others serve, without this one."""
    others = [one for one in etcd.members if one.number != number]
    serving = [one for one in others if one.is_healthy and not one.is_learner]
    voters = [one for one in others if not one.is_learner]
    if len(serving) > len(voters) // 2:
        return ""
    name = member_name(cluster_of(seen), number)
    of_others = f"{len(serving)} of {counted(len(voters), 'other member')} {'serves' if len(serving) == 1 else 'serve'}"
    return f"{name} has lost its volume, and {of_others}, which is not a majority: start them, or {_WAYS_OUT}"
