"""A meta service that speaks TLS with its callers and with etcd: both certificates are read again, and counted."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

from stratalog.settings.load import load_process_settings
from stratalog_cli.services.meta_start import MetaProcess
from stratalog_meta.stores.etcd.access import AccessFiles, read_access
from stratalog_meta.stores.etcd.address import parse_address
from support.certificates import Authority
from support.cluster_ports import free_port


async def test_a_meta_service_counts_its_own_certificates_and_those_for_etcd(tmp_path: Path) -> None:
    authority, folder = Authority(), tmp_path / "tls"
    authority.issue_member("meta").write_folder(folder, authority.certificate)
    settings = load_process_settings(
        environment={}, assignments=(f"ssl.certificate.folder={folder}", "http.security.protocol=SSL")
    )
    files = AccessFiles(ca=folder / "ca.crt", certificate=folder / "tls.crt", key=folder / "tls.key")
    async with AsyncExitStack() as running:
        process = MetaProcess(settings, running)
        etcd = parse_address(f"etcd://127.0.0.1:{free_port()}")  # nothing answers there
        assert (await process.start("127.0.0.1:0", etcd, read_access(files, {}))).startswith("https://")
        ends = process.metrics.values()["stratalog_tls_expires_seconds"]
        assert set(ends) == {("own",), ("etcd",)} and all(ends.values())
