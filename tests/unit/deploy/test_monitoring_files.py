"""The alerts that are shipped: promtool's own tests pass, and the page tells of each what to do."""

from __future__ import annotations

import re

import pytest
import yaml

from support.prometheus_server import MONITORING, NO_PROMETHEUS, promtool, tool
from support.source_tree import PRODUCT_ROOTS, REPOSITORY, python_files

PAGE = (REPOSITORY / "docs" / "alerts.md").read_text(encoding="utf-8")


def alerts() -> list[str]:
    rules = yaml.safe_load((MONITORING / "alerts.yaml").read_text(encoding="utf-8"))
    return [rule["alert"] for group in rules["groups"] for rule in group["rules"]]


@pytest.mark.skipif(tool("promtool") is None, reason=NO_PROMETHEUS)
def test_promtool_takes_configuration_rules_and_their_tests() -> None:
    promtool("check", "config", "prometheus.yaml")
    promtool("test", "rules", "alerts_test.yaml")


def test_every_alert_has_a_test_that_fires_and_one_that_is_silent() -> None:
    tests = yaml.safe_load((MONITORING / "alerts_test.yaml").read_text(encoding="utf-8"))["tests"]
    fires = {one["alertname"] for test in tests for one in test["alert_rule_test"] if one["exp_alerts"]}
    silent = {one["alertname"] for test in tests for one in test["alert_rule_test"] if not one["exp_alerts"]}
    assert fires == silent == set(alerts())


def test_the_page_reports_each_alert_what_to_do_and_of_no_other() -> None:
    assert re.findall(r"^### (Stratalog\w+)", PAGE, re.MULTILINE) == alerts()


def test_the_page_names_metrics_that_there_are() -> None:
    """Those of the dashboard and the alerts are tried over a real cluster (tests/cluster/test_monitoring.py)."""
    shipped = [(MONITORING / name).read_text(encoding="utf-8") for name in ("alerts.yaml", "dashboard.json")]
    source = [path.read_text(encoding="utf-8") for path in python_files(PRODUCT_ROOTS)]
    named = set(re.findall(r"`((?:stratalog|process)_[a-z_]*[a-z])`", PAGE))
    fields = {name: name.split("_", 2)[-1] for name in named}
    missing = {
        name
        for name in named
        if not any(name in text for text in shipped)
        and not any(name in text or f" {fields[name]}: int = " in text for text in source)
    }
    assert named and not missing
