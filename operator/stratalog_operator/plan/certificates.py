"""Which certificates a cluster is to have of the operator's own authorities, and when each is renewed.

Nothing breaks while an authority is replaced, because what is trusted is always more than what is shown:

    steady ──renewal is due──> joining: the next authority is trusted, the present one issues
    joining ──overlap passed──> steady: the next one issues, all certificates are issued again; the former one is
                                trusted until it expires, and its key is gone

An authority that expired, or will before the overlap is over, is replaced at once: it proves nothing any more. The
authority of clients goes through the same steps: nodes trust it, and `user_certificates.py` has it issue. So does the
authority of etcd, whose members have to be restarted in between.

Pure. Source: docs/kubernetes-security.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from stratalog_operator.plan.actions import AuthorityStep, Offer, RenewCertificates
from stratalog_operator.plan.observed import Observed, SeenAuthority, SeenCertificates, SeenIssuer, SeenLeaf, SeenNode
from stratalog_operator.plan.release import claim_of_disk, source_of
from stratalog_operator.plan.scope import cluster_of, identity_of
from stratalog_operator.resources.cluster import CertificateAuthority
from stratalog_operator.resources.names import ANNOTATION_ROTATE_CA
from stratalog_operator.specs.certificate_secrets import (
    ETCD,
    ETCD_CLIENT,
    META,
    OF_ETCD,
    OPERATOR,
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
    expires: str = ""
    """The first of those that are shown."""


def plan_certificates(seen: Observed) -> CertificatePlan:
    cluster, there = cluster_of(seen), seen.certificates
    if not uses_own_authority(cluster) or there is None:
        return CertificatePlan()
    if there.trouble:
        return CertificatePlan(invalid=there.trouble)
    given = cluster.spec.own_authority
    now = datetime.fromisoformat(seen.now)
    word = seen.cluster.annotations.get(ANNOTATION_ROTATE_CA, "")[:253]
    step = _step(there.authority, given, now, word)
    clients, etcd = (
        None if one is None or one.trouble else _step(one, given, now, word) for one in (there.clients, there.etcd)
    )
    if etcd is AuthorityStep.SWITCH and not _may_switch_etcd(seen, there, now):
        etcd = AuthorityStep.KEEP
    trouble = "; ".join(one.trouble for one in (there.clients, there.etcd) if one is not None and one.trouble)
    wanted = _wanted(seen)
    issued: dict[str, frozenset[str]] = {}
    for name, names in wanted.items():
        authority, of_it = (there.etcd, etcd) if name in OF_ETCD else (there.authority, step)
        if authority is None or of_it is None:
            continue  # it cannot issue
        if of_it in _ISSUES_ANEW or _is_due(authority, there.leaves.get(name), names, given, now):
            issued[name] = names
    gone = tuple(sorted(there.leaves.keys() - wanted.keys()))
    expires = min((leaf.not_after for leaf in there.leaves.values()), default="")
    is_kept = all(one in (None, AuthorityStep.KEEP) for one in (step, clients, etcd))
    if is_kept and not issued and not gone and there.is_published:
        return CertificatePlan(invalid=trouble, expires=expires)
    versions = (there.authority.version, there.leaves_version, there.trust_version)
    of_clients = None if clients is None or there.clients is None else (clients, there.clients.version)
    of_etcd = None if etcd is None or there.etcd is None else (etcd, there.etcd.version)
    action = RenewCertificates(step, issued, gone, versions, word, of_clients, of_etcd)
    return CertificatePlan(Offer([action]), trouble, expires)


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
    # A client of etcd has no name of a host: etcd would compare it with the address from which it comes.
    return {**wanted, ETCD: etcd_names(cluster), ETCD_CLIENT: frozenset()} if cluster.has_etcd_tls else wanted


def _may_switch_etcd(seen: Observed, there: SeenCertificates, now: datetime) -> bool:
    """Whether every member has started with the next authority: a member reads those that it trusts at its start alone,
    and would refuse all clients otherwise. An authority that has expired is not waited for."""
    cluster, issuer = cluster_of(seen), None if there.etcd is None else there.etcd.issuer
    etcd = cluster.spec.meta.etcd
    if issuer is not None and _time(issuer.not_after) <= now:
        return True
    if etcd is None or cluster.is_etcd_held:
        return False
    wanted = template_hash(etcd_objects(cluster, etcd)[-1])
    pods = [seen.pod_named(member_name(cluster, number)) for number in range(etcd.replicas)]
    return all(pod is not None and pod.is_ready and pod.pod_hash == wanted for pod in pods)


def _step(there: SeenAuthority, given: CertificateAuthority, now: datetime, word: str) -> AuthorityStep:
    present = there.issuer
    if present is None:
        return AuthorityStep.MAKE
    ends = _time(present.not_after)
    if there.next_issuer is not None:
        overlap = timedelta(seconds=given.overlap_seconds)
        is_known = now >= _time(there.next_issuer.added_at) + overlap
        return AuthorityStep.SWITCH if is_known or ends <= now else AuthorityStep.KEEP
    is_due = now >= ends - timedelta(days=given.renewal_days)
    if is_due or (word and word != there.rotated_for):
        return AuthorityStep.ADD
    return AuthorityStep.KEEP


def _is_due(
    there: SeenAuthority,
    leaf: SeenLeaf | None,
    names: frozenset[str],
    given: CertificateAuthority,
    now: datetime,
) -> bool:
    issuer = there.issuer
    assert issuer is not None, "otherwise all are issued"
    if _time(issuer.not_after) <= now:
        return False  # what it would issue proves nothing: the next authority does
    if leaf is None or leaf.names != names or leaf.issuer != issuer.fingerprint:
        return True
    return is_old(leaf.not_after, issuer, given, now)


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
