"""Writes what charts/ and deploy/ take from elsewhere: definitions from crds/, rights from the
operator's list, alerts from deploy/monitoring/.

python tools/deploy_files.py            writes them
python tools/deploy_files.py --check    names those that differ; exit 1 when there are any
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from stratalog_operator.kube.rights import FOR_OWNERS, RIGHTS, Scope, rules

TOP = Path(__file__).resolve().parent.parent
CHART = TOP / "charts" / "stratalog"
ALERTS = TOP / "deploy" / "monitoring" / "alerts.yaml"
KEEP = {"helm.sh/resource-policy": "keep"}
HEAD = "# Made by `make crds`. Do not edit.\n"
NAME, NAMESPACE = "stratalog-operator", "stratalog-system"
LABELS = {"app.kubernetes.io/name": NAME, "app.kubernetes.io/part-of": "stratalog"}


def definitions() -> Mapping[Path, str]:
    """Of the chart: they stay when it goes, and with them all objects."""
    made = {}
    for path in sorted((TOP / "crds").glob("stratalog.dev_*.yaml")):
        definition = yaml.safe_load(path.read_text(encoding="utf-8"))
        definition["metadata"]["annotations"] = {**definition["metadata"].get("annotations", {}), **KEEP}
        text = dumped(definition)
        assert "{{" not in text, f"{path.name}: helm would take it for a template"
        made[TOP / "charts" / "stratalog-crds" / "templates" / path.name] = text
    return made


def rights() -> dict[str, Any]:
    """The rules of the chart's roles, by where they hold."""
    return {
        "watched": rules(RIGHTS[Scope.WATCHED] | FOR_OWNERS),
        "whole": rules(RIGHTS[Scope.WHOLE]),
        "own": rules(RIGHTS[Scope.OWN]),
    }


def roles() -> list[dict[str, Any]]:
    """For `kubectl apply -k`: the operator looks after all namespaces."""
    found = rights()
    everywhere = _role("ClusterRole", NAME, [*found["watched"], *found["whole"]])
    own = _role("Role", f"{NAME}-lease", found["own"])
    return [everywhere, _binding(everywhere), own, _binding(own)]


def _role(kind: str, name: str, given: list[dict[str, Any]]) -> dict[str, Any]:
    metadata = {"name": name, "labels": {**LABELS}}
    if kind == "Role":
        metadata["namespace"] = NAMESPACE
    return {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": metadata, "rules": given}


def _binding(role: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": role["apiVersion"],
        "kind": f"{role['kind']}Binding",
        "metadata": {**role["metadata"], "labels": {**LABELS}},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": role["kind"], "name": role["metadata"]["name"]},
        "subjects": [{"kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE}],
    }


def dumped(*values: Any) -> str:
    return HEAD + yaml.safe_dump_all(values, sort_keys=False, width=120, allow_unicode=True)


def wanted() -> Mapping[Path, str]:
    return {
        **definitions(),
        CHART / "files" / "rights.yaml": dumped(rights()),
        CHART / "files" / "alerts.yaml": HEAD + ALERTS.read_text(encoding="utf-8"),
        TOP / "deploy" / "operator" / "rights.yaml": dumped(*roles()),
    }


def main(arguments: list[str]) -> int:
    made = wanted()
    if arguments == ["--check"]:
        wrong = [path for path, text in made.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
        for path in wrong:
            print(f"{path.relative_to(TOP)} is not what `make crds` writes")
        return 1 if wrong else 0
    for path, text in made.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
