"""Which certificates a cluster is to have of the operator's own authorities, and when each is renewed.

Nothing breaks while an authority is replaced, because what is trusted is always more than what is shown:

    steady ──renewal is due──> joining: the next authority is trusted, the present one issues
    joining ──overlap passed──> steady: the next one issues, all certificates are issued again; the former one is
                                trusted until it expires, and its key is gone
    steady ──every pod shows a certificate of the present one──> steady: former ones are trusted no more

An authority that expired, or will before the overlap is over, is replaced at once: it proves nothing any more. Neither
does one that is not valid yet, which an operator whose clock was ahead has made. But with a clock that is behind every
authority seems not to be valid yet, so only a person's word replaces it. A next one that is damaged, or not valid yet,
has issued nothing: another one takes its place, and the overlap begins again. While the clock differs from that of the
API server, nothing is done. The authority of clients goes through the same steps: nodes trust it, and
`user_certificates.py` has it issue. So does the authority of etcd, whose members have to be restarted in between.

Pure. Source: docs/kubernetes-security.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from stratalog_operator.plan.actions import AuthorityStep, Offer, RenewCertificates
from stratalog_operator.plan.former_authorities import may_drop_former
from stratalog_operator.plan.observed import Observed, SeenAuthority, SeenCertificates, SeenIssuer, SeenLeaf, SeenNode
from stratalog_operator.plan.release import claim_of_disk, source_of
from stratalog_operator.plan.scope import cluster_of, identity_of, why_no_time
from stratalog_operator.resources.cluster import CertificateAuthority
from stratalog_operator.resources.names import ANNOTATION_ROTATE_CA
from stratalog_operator.specs.certificate_secrets import (
    ETCD,
    ETCD_CLIENT,
    ETCD_PEER,
    FORMER,
    META,
    MOST_FORMER,
    NEXT,
    NEXT_KEY,
    OF_ETCD,
    OPERATOR,
    authority_secret,
    clients_authority_secret,
    etcd_authority_secret,
    uses_own_authority,
)
from stratalog_operator.specs.certificates import etcd_names, leaf_names, meta_names, operator_names
from stratalog_operator.specs.etcd import etcd_objects, member_name
from stratalog_operator.specs.node import NodeIdentity, node_name
from stratalog_operator.specs.objects import template_hash

_LEAST_GAIN: Final = timedelta(days=1)
"""A certificate that would last no longer is not issued again: its authority ends soon, too."""


_ISSUES_ANEW: Final = (AuthorityStep.MAKE, AuthorityStep.SWITCH)


@dataclass(frozen=True, slots=True)
class CertificatePlan:
    offer: Offer = field(default_factory=Offer)
    invalid: str = ""
    """Why certificates cannot be written, in words."""
    waits: str = ""
    """Why none is written for now."""
    expires: str = ""
    """The first of those that are shown."""


def plan_certificates(seen: Observed) -> CertificatePlan:
    cluster, there = cluster_of(seen), seen.certificates
    if not uses_own_authority(cluster) or there is None:
        return CertificatePlan()
    if there.trouble:
        return CertificatePlan(invalid=there.trouble)
    expires = min((leaf.not_after for leaf in there.leaves.values()), default="")
    if waits := why_no_time(seen):
        return CertificatePlan(waits=waits, expires=expires)
    given = cluster.spec.own_authority
    now = datetime.fromisoformat(seen.now)
    word = seen.cluster.annotations.get(ANNOTATION_ROTATE_CA, "")[:253]
    step = _step(there.authority, given, now, word)
    if step is AuthorityStep.KEEP and may_drop_former(seen):
        step = AuthorityStep.DROP
    clients, etcd = (
        None if one is None or one.trouble else _step(one, given, now, word) for one in (there.clients, there.etcd)
    )
    if etcd is AuthorityStep.SWITCH and not _may_switch_etcd(seen, there, now):
        etcd = AuthorityStep.KEEP
    trouble = _troubles(seen, there, now)
    wanted = _wanted(seen)
    issued: dict[str, frozenset[str]] = {}
    for name, names in wanted.items():
        authority, of_it = (there.etcd, etcd) if name in OF_ETCD else (there.authority, step)
        if authority is None or of_it is None:
            continue  # it cannot issue
        if of_it in _ISSUES_ANEW or _is_due(authority, there.leaves.get(name), names, given, now):
            issued[name] = names
    gone = tuple(sorted(there.leaves.keys() - wanted.keys()))
    is_kept = all(one in (None, AuthorityStep.KEEP) for one in (step, clients, etcd))
    if is_kept and not issued and not gone and there.is_published:
        return CertificatePlan(invalid=trouble, expires=expires)
    versions = (there.authority.version, there.leaves_version, there.trust_version)
    of_clients = None if clients is None or there.clients is None else (clients, there.clients.version)
    of_etcd = None if etcd is None or there.etcd is None else (etcd, there.etcd.version)
    action = RenewCertificates(step, issued, gone, versions, word, of_clients, of_etcd)
    return CertificatePlan(Offer([action]), trouble, expires=expires)


def _troubles(seen: Observed, there: SeenCertificates, now: datetime) -> str:
    """What is wrong with authorities and stops only what they would issue, in words."""
    cluster = cluster_of(seen)
    named = (
        (authority_secret(cluster), there.authority),
        (clients_authority_secret(cluster), there.clients),
        (etcd_authority_secret(cluster), there.etcd),
    )
    found = []
    for name, one in named:
        if one is None:
            continue
        if one.trouble:
            found.append(one.trouble)
        elif one.issuer is not None and is_early(one.issuer.not_before, now):
            found.append(
                f"the authority in Secret {name} is valid only from {one.issuer.not_before} on: correct the clock of "
                "the operator's machine; or, if that was ahead when it made it, replace the authority: kubectl "
                f"annotate scl/{seen.cluster.name} --overwrite {ANNOTATION_ROTATE_CA}=WORD"
            )
        elif one.is_next_damaged:
            found.append(
                f"{NEXT} and {NEXT_KEY} of Secret {name} cannot be read or do not fit each other: the operator makes "
                "another next authority, which is trusted for the whole overlap before it issues"
            )
        elif one.next_issuer is not None and is_early(one.next_issuer.not_before, now):
            found.append(
                f"the next authority in Secret {name} is valid only from {one.next_issuer.not_before} on, because the "
                "clock of the operator that made it was ahead: another one takes its place"
            )
        elif _is_full(one, seen.cluster.annotations.get(ANNOTATION_ROTATE_CA, "")[:253]):
            found.append(
                f"Secret {name} has {MOST_FORMER} former authorities that clients may still trust: another one is made "
                f"once the first of them has expired, or was taken out of {FORMER}"
            )
    return "; ".join(found)


def _wanted(seen: Observed) -> dict[str, frozenset[str]]:
    """The names in each certificate, by its holder."""
    cluster = cluster_of(seen)
    wanted = {
        str(node.spec.node_id): leaf_names(cluster, identity_of(node), _machine_address(seen, node))
        for node in seen.nodes
    }
    if not cluster.has_internal_tls:
        return wanted
    # The process that reads the volume of a retired node proves to be that node.
    for source in (found for mount in seen.mounts if (found := source_of(mount)) is not None):
        claim = claim_of_disk(seen, source.node_id, source.storage_id)
        if claim is not None:
            reader = NodeIdentity(source.node_id, claim.pool, claim.zone)
            wanted.setdefault(str(source.node_id), leaf_names(cluster, reader, ""))
    wanted |= {META: meta_names(cluster), OPERATOR: operator_names(cluster)}
    # A client of etcd, or another member as one, has no name of a host: etcd would compare it with the address from
    # which it comes.
    if cluster.has_etcd_tls:
        wanted |= {ETCD: etcd_names(cluster), ETCD_CLIENT: frozenset(), ETCD_PEER: frozenset()}
    return wanted


def _may_switch_etcd(seen: Observed, there: SeenCertificates, now: datetime) -> bool:
    """Whether every member has started with the next authority: a member reads those that it trusts at its start alone,
    and would refuse all clients otherwise. An authority that proves nothing is not waited for."""
    cluster, issuer = cluster_of(seen), None if there.etcd is None else there.etcd.issuer
    etcd = cluster.spec.meta.etcd
    if issuer is not None and proves_nothing(issuer, now):
        return True
    if etcd is None or cluster.is_etcd_held:
        return False
    wanted = template_hash(etcd_objects(cluster, etcd)[-1])
    pods = [seen.pod_named(member_name(cluster, number)) for number in range(etcd.replicas)]
    return all(pod is not None and pod.is_ready and pod.pod_hash == wanted for pod in pods)


def _step(there: SeenAuthority, given: CertificateAuthority, now: datetime, word: str) -> AuthorityStep:
    present, following = there.issuer, there.next_issuer
    if present is None:
        return AuthorityStep.MAKE
    ends, is_asked = _time(present.not_after), bool(word and word != there.rotated_for)
    is_next_usable = following is not None and not proves_nothing(following, now)
    if is_early(present.not_before, now):
        # By a person's word alone: the clock may be behind, and then a next one is not valid yet either.
        if is_next_usable:
            return AuthorityStep.SWITCH
        return AuthorityStep.ADD if is_asked else AuthorityStep.KEEP
    if following is not None and is_next_usable:
        overlap = timedelta(seconds=given.overlap_seconds)
        is_known = now >= _time(following.added_at) + overlap
        return AuthorityStep.SWITCH if is_known or ends <= now else AuthorityStep.KEEP
    if there.is_next_damaged or following is not None:
        return AuthorityStep.ADD
    is_due = now >= ends - timedelta(days=given.renewal_days)
    return AuthorityStep.ADD if is_due or (is_asked and not _is_full(there, word)) else AuthorityStep.KEEP


def _is_full(there: SeenAuthority, word: str) -> bool:
    """Whether a person's word has to wait, because with another authority a former one would be forgotten."""
    return bool(word and word != there.rotated_for) and there.former >= MOST_FORMER and there.next_issuer is None


def _is_due(
    there: SeenAuthority,
    leaf: SeenLeaf | None,
    names: frozenset[str],
    given: CertificateAuthority,
    now: datetime,
) -> bool:
    issuer = there.issuer
    assert issuer is not None, "otherwise all are issued"
    if proves_nothing(issuer, now):
        return False  # what it would issue proves nothing either: the next authority does
    if leaf is None or leaf.names != names or leaf.issuer != issuer.fingerprint or is_early(leaf.not_before, now):
        return True
    return is_old(leaf.not_after, issuer, given, now)


def proves_nothing(issuer: SeenIssuer, now: datetime) -> bool:
    return _time(issuer.not_after) <= now or is_early(issuer.not_before, now)


def is_early(not_before: str, now: datetime) -> bool:
    """Whether what begins then is not valid yet: the clock of who made it was ahead."""
    return bool(not_before) and _time(not_before) > now


def is_old(not_after: str, issuer: SeenIssuer, given: CertificateAuthority, now: datetime) -> bool:
    """Whether a certificate that ends then is to be issued again, and would last longer."""
    ends = _time(not_after)
    would_end = min(now + timedelta(days=given.certificate_days), _time(issuer.not_after))
    return now >= ends - timedelta(days=given.certificate_renewal_days) and would_end >= ends + _LEAST_GAIN


def _machine_address(seen: Observed, node: SeenNode) -> str:
    """By which clients outside of Kubernetes reach the node where its listeners name no host."""
    pod = seen.pod_named(f"{node_name(seen.cluster.name, node.spec.pool_ref, node.spec.node_id)}-0")
    return "" if pod is None else pod.machine_address


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)
