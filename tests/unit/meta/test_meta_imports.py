"""Start-up is fast because what only HTTP needs is imported when HTTP is served."""

from __future__ import annotations

import subprocess
import sys


def test_the_service_and_its_store_import_neither_aiohttp_nor_pydantic() -> None:
    program = (
        "import sys, stratalog_meta, stratalog_meta.api, stratalog_meta.stores.rocksdb, stratalog.meta_api.client\n"
        "print([name for name in ('aiohttp', 'pydantic', 'pydantic_core', 'prometheus_client') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
