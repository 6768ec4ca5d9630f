"""A cluster with the operator's own authority, and passes over its certificates, for tests without an API server."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from stratalog_operator.apply.certificates import renew_certificates
from stratalog_operator.kube.certificate_files import is_issued_by, read_certificate
from stratalog_operator.observe.certificates import read_certificates
from stratalog_operator.plan.actions import AuthorityStep, RenewCertificates
from stratalog_operator.plan.certificates import CertificatePlan, plan_certificates
from stratalog_operator.plan.observed import Observed, Seen, SeenPod
from stratalog_operator.plan.scope import cluster_of
from stratalog_operator.resources.cluster import StorageClusterSpec, StorageClusterStatus
from stratalog_operator.resources.node import StorageNodeSpec, StorageNodeStatus
from support.secret_store import Secrets

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SHORT = {
    "validityDays": 40,
    "renewalDays": 20,
    "overlapSeconds": 5 * 86400,
    "certificateDays": 10,
    "certificateRenewalDays": 4,
}
SECRETS = ("main-authority", "main-ca", "main-certificates")


class CertificateRig:
    """A cluster with its own authority, and passes over it."""

    def __init__(self, *, nodes: int = 2, listener: dict[str, Any] | None = None, **authority: Any) -> None:
        users = {"name": "users", "port": 9093, "tls": True, **(listener or {})}
        spec = {
            "meta": {"etcd": {}},
            "listeners": [{"name": "internal", "port": 9092}, users],
            **({"tls": {"authority": authority}} if authority else {}),
        }
        self.spec = StorageClusterSpec.model_validate(spec)
        self.kubernetes, self.now, self.annotations = Secrets(), NOW, dict[str, str]()
        self.nodes, self.pods = nodes, tuple[SeenPod, ...]()
        self.clock_ahead_seconds = 0

    async def observe(self) -> Observed:
        now = self.now.strftime("%Y-%m-%dT%H:%M:%SZ")
        whole = Seen("main", "uid-of-main", self.spec, StorageClusterStatus(), annotations=self.annotations)
        nodes = tuple(
            Seen(
                f"main-hot-{number}",
                f"u-{number}",
                StorageNodeSpec.model_validate({"clusterRef": "main", "poolRef": "hot", "nodeId": number}),
                StorageNodeStatus(),
            )
            for number in range(1, self.nodes + 1)
        )
        seen = Observed("data", now, whole, nodes=nodes, pods=self.pods)
        seen = replace(seen, clock_ahead_seconds=self.clock_ahead_seconds)
        return replace(seen, certificates=await read_certificates(self.kubernetes, cluster_of(seen), now))

    async def plan(self) -> CertificatePlan:
        return plan_certificates(await self.observe())

    async def one_pass(self) -> RenewCertificates | None:
        seen = await self.observe()
        (action,) = plan_certificates(seen).offer.actions or (None,)
        if action is None:
            return None
        assert isinstance(action, RenewCertificates)
        await renew_certificates(self.kubernetes, cluster_of(seen), seen.now, action)
        return action

    async def settle(self) -> list[AuthorityStep]:
        steps = []
        while (action := await self.one_pass()) is not None:
            steps.append(action.step)
            assert len(steps) < 10, "a pass over what is as it should be writes nothing"
        return steps

    def leaf(self, node: int = 1) -> str:
        return self.kubernetes.text("main-certificates", f"node-{node}.crt")

    def trusted(self) -> str:
        return self.kubernetes.text("main-ca", "ca.crt")


def accepts(trusted: str, leaf: str, now: datetime) -> bool:
    """Whether a client with this ca.crt takes the certificate, at that time."""
    shown = read_certificate(leaf)
    authorities = [f"-----BEGIN{text}" for text in trusted.split("-----BEGIN")[1:]]
    found = [one for one in map(read_certificate, authorities) if is_issued_by(shown, one)]
    times = [shown, *found]
    return bool(found) and all(one.not_valid_before_utc <= now < one.not_valid_after_utc for one in times)
