"""Where a table lies, in the words of the libraries of Delta and Iceberg."""

from __future__ import annotations

import pytest

from support.pipeline_extra import NO_PIPELINE

pytest.importorskip("fastavro", reason=NO_PIPELINE)

from stratalog.model.errors import InvalidRequest
from stratalog_pipeline.jobs.tables.table_places import table_place


def test_a_table_at_google_takes_its_login_from_the_query_before_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/etc/environment.json")
    place = table_place("gs://tables/a")
    assert (place.base, place.iceberg_base) == ("gs://tables/a", "gs://tables/a")
    assert place.delta_options["google_application_credentials"] == "/etc/environment.json"
    place = table_place("gs://tables/a?credentials_file=/etc/query.json&endpoint=https://storage.example")
    assert place.delta_options["google_application_credentials"] == "/etc/query.json"
    assert place.delta_options["google_base_url"] == "https://storage.example"
    assert place.delta_options["allow_http"] == "false"


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("account_name=acme", "abfss://tables@acme.dfs.core.windows.net/a/b"),
        (
            "account_name=acme&endpoint=https://acme.blob.core.chinacloudapi.cn",
            "abfss://tables@acme.dfs.core.chinacloudapi.cn/a/b",
        ),
        ("account_name=acme&endpoint=http://127.0.0.1:10000/acme", "abfss://tables@acme.dfs.core.windows.net/a/b"),
    ],
)
def test_iceberg_names_files_at_azure_by_their_file_system(query: str, named: str) -> None:
    assert table_place(f"az://tables/a/b?{query}").iceberg_base == named


def test_a_table_at_azure_takes_its_account_from_the_environment_and_shows_no_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "acme")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "aHVzaA==")
    place = table_place("az://tables")
    assert place.iceberg_base == "abfss://tables@acme.dfs.core.windows.net"
    assert place.delta_options["azure_storage_account_key"] == "aHVzaA=="
    assert "aHVzaA==" not in repr(place)


def test_a_table_in_memory_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="would be lost"):
        table_place("memory:")
