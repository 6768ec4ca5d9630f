"""docs/kafka.md says what the registry and the list of what is unsupported say."""

from __future__ import annotations

from pathlib import Path

from stratalog.model.rights import ResourceType
from stratalog_node.serve.api import control_apis
from stratalog_node.serve.connections.registry import Api, Registry
from stratalog_node.serve.server import data_apis
from stratalog_node.serve.unsupported import UNSUPPORTED


def registry() -> Registry:
    return Registry(data_apis() + control_apis())


def table(repository: Path, section: str) -> list[list[str]]:
    """The rows of a section's first table, without its head."""
    page = (repository / "docs" / "kafka.md").read_text()
    body = page.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    rows = [line for line in body.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]]


def row(api: Api) -> list[str]:
    advertised_min = api.min_version if api.advertised_min is None else api.advertised_min
    return [
        str(api.key),
        api.name,
        f"{advertised_min}-{api.max_version}",
        f"{api.min_version}-{api.max_version}",
    ]


def test_the_page_lists_exactly_the_keys_and_versions_of_the_registry(repository: Path) -> None:
    assert [cells[:4] for cells in table(repository, "1. Keys and versions")] == [row(api) for api in registry().all()]


def test_the_page_lists_exactly_the_rights_that_apis_ask_for(repository: Path) -> None:
    page = (repository / "docs" / "kafka.md").read_text()
    body = page.partition("\n### What a client may do\n")[2].partition("\n### ")[0]
    listed = [line for line in body.splitlines() if line.startswith("|")][2:]
    assert listed == [
        f"| {api.name} | {need.operation.name} on {_ON[need.of_type]} | {need.otherwise} |"
        for api in registry().all()
        for need in api.needs
    ]


_ON = {ResourceType.TOPIC: "the topic", ResourceType.GROUP: "the group", ResourceType.CLUSTER: "the cluster"}


def test_the_page_lists_exactly_what_is_unsupported(repository: Path) -> None:
    told = [(cells[0], cells[1], cells[2]) for cells in table(repository, "5. Left out")]
    assert told == [(one.feature, ", ".join(map(str, one.keys)), one.reason) for one in UNSUPPORTED]


def test_what_is_unsupported_is_not_served() -> None:
    served = {api.key for api in registry().all()}
    for one in UNSUPPORTED:
        assert not served & set(one.keys), one.feature


def test_no_key_is_unsupported_twice() -> None:
    keys = [key for one in UNSUPPORTED for key in one.keys]
    assert len(keys) == len(set(keys))
