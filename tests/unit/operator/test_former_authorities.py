"""A former authority is trusted until every pod of the cluster was seen to show a certificate of the present one."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from stratalog_operator.observe import parse
from stratalog_operator.observe.shown_certificates import pods_that_show
from stratalog_operator.plan.actions import AuthorityStep
from stratalog_operator.plan.certificates import plan_certificates
from stratalog_operator.plan.former_authorities import may_drop_former, pods_to_prove
from stratalog_operator.plan.news import of_certificates
from stratalog_operator.plan.observed import Observed, SeenPod, SeenSet
from stratalog_operator.resources.cluster import StorageClusterSpec
from support.certificates import Authority
from support.cluster_ports import free_port
from support.operator_certificates import CertificateRig, accepts

TLS: dict[str, Any] = {"meta": {"external": {"endpoints": ["etcd:2379"]}, "replicas": 1}, "tls": {"internal": True}}
ADDRESSES = {"main-hot-1-0": "127.0.0.1", "main-hot-2-0": "127.0.0.2", "main-meta-0": "127.0.0.3"}
HOLDERS = {"main-hot-1-0": "node-1", "main-hot-2-0": "node-2", "main-meta-0": "meta"}


class Rig(CertificateRig):
    """A cluster whose authority was replaced; its pods are ports of this process."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.spec, self.folder, self.port = StorageClusterSpec.model_validate(TLS), folder, free_port()
        self.pods = tuple(SeenPod(name, f"uid-of-{name}", "", True, address=ADDRESSES[name]) for name in ADDRESSES)
        self.sets = tuple(SeenSet(name.removesuffix("-0"), "uid", 1) for name in ADDRESSES)
        self.now = datetime.now(UTC) - timedelta(days=30)  # handshakes go by the clock of the machine
        self.contexts: dict[str, ssl.SSLContext] = {}
        self.is_asking = True

    async def observe(self) -> Observed:
        seen = replace(await super().observe(), sets=self.sets)
        issuer = None if seen.certificates is None else seen.certificates.authority.issuer
        if not self.is_asking or issuer is None:
            return seen
        return replace(seen, proven_pods=await pods_that_show(pods_to_prove(seen), issuer, "data.main", self.port))

    def show(self, pod: str, certificate: str = "", key: str = "") -> None:
        """From now on its port shows this certificate; otherwise the one in its Secret."""
        holder = HOLDERS[pod]
        for ending, text in (("crt", certificate), ("key", key)):
            place = self.folder / f"{pod}.{ending}"
            place.write_text(text or self.kubernetes.text("main-certificates", f"{holder}.{ending}"))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.folder / f"{pod}.crt", self.folder / f"{pod}.key")
        self.contexts[pod] = context

    async def serve(self, pod: str, running: AsyncExitStack) -> None:
        def talk(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.close()

        server = await asyncio.start_server(talk, ADDRESSES[pod], self.port, ssl=self.contexts[pod])
        running.push_async_callback(server.wait_closed)
        running.callback(server.close)

    async def replace_authority(self) -> None:
        await self.settle()
        for pod in HOLDERS:
            self.show(pod)
        self.annotations = {"stratalog.dev/rotate-ca": "june"}
        await self.settle()
        self.now += timedelta(days=8)
        await self.settle()

    def former(self) -> str:
        data = self.kubernetes.held["main-authority"]["data"]
        return self.kubernetes.text("main-authority", "former.crt") if "former.crt" in data else ""


@pytest.mark.fault("certificates-renewed-while-used")
async def test_a_former_authority_is_given_up_once_every_pod_shows_a_certificate_of_the_present_one(
    tmp_path: Path,
) -> None:
    """Whose pod has not read its renewed certificate yet is still let in by the others."""
    rig = Rig(tmp_path)
    await rig.replace_authority()
    stolen = rig.former()
    late = (tmp_path / "main-hot-2-0.crt").read_text()
    assert stolen and accepts(rig.trusted(), late, rig.now)
    rig.show("main-hot-1-0")
    rig.show("main-meta-0")
    async with AsyncExitStack() as running:
        await rig.serve("main-hot-1-0", running)
        await rig.serve("main-meta-0", running)
        assert await rig.settle() == [], "one pod does not answer"
        async with AsyncExitStack() as early:
            await rig.serve("main-hot-2-0", early)
            rig.now += timedelta(days=60)
            assert await rig.settle() == [], "one shows a former certificate, however long it does"
        assert rig.former() == stolen and accepts(rig.trusted(), late, rig.now)
        rig.show("main-hot-2-0")
        await rig.serve("main-hot-2-0", running)
        before, seen = rig.leaf(), await rig.observe()
        (told,) = of_certificates(seen, plan_certificates(seen).offer.actions)
        assert (told.kind, told.reason, told.is_warning) == ("StorageCluster", "FormerAuthorityDropped", False)
        assert await rig.settle() == [AuthorityStep.DROP]

        assert not rig.former() and rig.trusted() == rig.kubernetes.text("main-certificates", "ca.crt")
        assert not accepts(rig.trusted(), late, rig.now)
        assert rig.leaf() == before and accepts(rig.trusted(), before, rig.now), "nothing is issued again"
        assert await rig.settle() == []


async def test_what_is_no_member_of_the_cluster_proves_nothing(tmp_path: Path) -> None:
    """Such as a pod of another program that has the address of one that is gone."""
    rig = Rig(tmp_path)
    await rig.replace_authority()
    for pod in HOLDERS:
        rig.show(pod)
    async with AsyncExitStack() as running:
        for pod in HOLDERS:
            await rig.serve(pod, running)
        seen = await rig.observe()
        assert may_drop_former(seen) and seen.certificates is not None
        issuer, pods = seen.certificates.authority.issuer, pods_to_prove(seen)
        assert issuer is not None and len(await pods_that_show(pods, issuer, "data.main", rig.port)) == len(pods)
        assert not await pods_that_show(pods, issuer, "data.other", rig.port)
        other = Authority()
        foreign = replace(issuer, pem=other.certificate.decode())
        assert not await pods_that_show(pods, foreign, "data.main", rig.port)
        assert not await pods_that_show(pods, replace(issuer, pem="none"), "data.main", rig.port)


async def _proven(folder: Path) -> Observed:
    """Every pod was seen to show what it should."""
    rig = Rig(folder)
    await rig.replace_authority()
    rig.is_asking = False
    return replace(await rig.observe(), proven_pods=frozenset(pod.uid for pod in rig.pods))


async def test_no_proof_is_enough_while_anything_else_may_show_a_former_certificate(tmp_path: Path) -> None:
    seen = await _proven(tmp_path)
    assert may_drop_former(seen) and seen.certificates is not None
    first, *others = seen.pods
    there, authority = seen.certificates, seen.certificates.authority
    issuer = authority.issuer
    assert issuer is not None
    leaf = there.leaves["1"]
    stale = {**there.leaves, "1": replace(leaf, issuer="another")}
    one_more = SeenPod("main-hot-7-vol-0", "uid-of-reader", "", True, address="127.0.0.4")
    cases = {
        "a pod is away": replace(seen, pods=tuple(others)),
        "a pod is not ready": replace(seen, pods=(replace(first, is_ready=False), *others)),
        "a pod is being stopped": replace(seen, pods=(replace(first, is_leaving=True), *others)),
        "a pod is another one": replace(seen, pods=(replace(first, uid="another"), *others)),
        "a pod has no address": replace(seen, pods=(replace(first, address=""), *others)),
        "a further pod was not asked": replace(seen, pods=(*seen.pods, one_more)),
        "a set has more pods": replace(seen, sets=(replace(seen.sets[0], replicas=2), *seen.sets[1:])),
        "a certificate is to be issued": replace(seen, certificates=replace(there, leaves=stale)),
        "not all have what is trusted": replace(seen, certificates=replace(there, is_published=False)),
        "the next one is there": replace(
            seen, certificates=replace(there, authority=replace(authority, next_issuer=issuer))
        ),
        "there is no former one": replace(seen, certificates=replace(there, authority=replace(authority, former=0))),
        "the parts speak plain text": replace(
            seen, cluster=replace(seen.cluster, spec=StorageClusterSpec.model_validate({"meta": {"etcd": {}}}))
        ),
    }
    assert [words for words, one in cases.items() if may_drop_former(one)] == []


async def test_a_wrong_clock_or_a_damaged_authority_ends_no_trust(tmp_path: Path) -> None:
    seen = await _proven(tmp_path)
    assert plan_certificates(seen).offer.actions
    assert not plan_certificates(replace(seen, clock_ahead_seconds=3600)).offer.actions
    assert seen.certificates is not None
    damaged = replace(seen.certificates, trouble="it cannot be read")
    assert not plan_certificates(replace(seen, certificates=damaged)).offer.actions


async def test_pods_of_etcd_and_of_jobs_that_ended_are_not_waited_for(tmp_path: Path) -> None:
    """They show no certificate of the cluster's authority."""
    seen = await _proven(tmp_path)
    made = {
        part: {
            "metadata": {"name": f"main-{part}-0", "uid": part, "labels": {"stratalog.dev/part": part}},
            "status": {"podIP": "10.0.0.7", "hostIP": "10.1.0.1"},
        }
        for part in ("etcd", "job", "node")
    }
    etcd, job, node = (parse.pod(one, "2026-01-01T00:00:00Z") for one in made.values())

    assert (etcd.address, etcd.is_ready) == ("10.0.0.7", False)
    assert may_drop_former(replace(seen, pods=(*seen.pods, etcd, job)))
    assert not may_drop_former(replace(seen, pods=(*seen.pods, node)))
