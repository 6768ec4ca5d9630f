"""Writes `crds/` from the models: `python -m stratalog_operator.resources.definitions crds`.

A test compares the folder with `render`, so that schema, models and `kubectl explain` cannot drift apart.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import yaml
from pydantic import JsonValue

from stratalog_operator.resources.kinds import KINDS, Column, Kind
from stratalog_operator.resources.names import GROUP, VERSION
from stratalog_operator.resources.structural import Schema, structural

CATEGORY: Final = "stratalog"
_HEAD: Final = "# Made from operator/stratalog_operator/resources by `make crds`. Do not edit.\n"


def definition(kind: Kind) -> Schema:
    """The CustomResourceDefinition of a kind."""
    subresources: dict[str, JsonValue] = {"status": {}}
    if kind.has_scale:
        subresources["scale"] = {
            "specReplicasPath": ".spec.replicas",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        }
    version: Schema = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": _root(kind)},
        "subresources": subresources,
        "additionalPrinterColumns": [_column(column) for column in kind.columns],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{kind.plural}.{GROUP}",
            "labels": {"app.kubernetes.io/name": "stratalog", "app.kubernetes.io/component": "operator"},
        },
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": kind.name,
                "listKind": f"{kind.name}List",
                "plural": kind.plural,
                "singular": kind.singular,
                "shortNames": [kind.short_name],
                "categories": [CATEGORY],
            },
            "versions": [version],
        },
    }


def _root(kind: Kind) -> Schema:
    root: Schema = {
        "type": "object",
        "description": kind.text,
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string", "description": f"{GROUP}/{VERSION}."},
            "kind": {"type": "string", "description": f"{kind.name}."},
            # A bound that is Kubernetes' own: without it a rule about names might be too dear.
            "metadata": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 253}}},
            "spec": structural(kind.spec),
            "status": structural(kind.status),
        },
    }
    if kind.name_rules:
        root["x-kubernetes-validations"] = [dict(one) for one in kind.name_rules]
    return root


def _column(column: Column) -> Schema:
    shown: Schema = {"name": column.name, "type": column.type, "jsonPath": column.path}
    return {**shown, "priority": 1} if column.is_wide else shown


def render() -> Mapping[str, str]:
    """File name to text."""
    return {
        f"{GROUP}_{kind.plural}.yaml": _HEAD
        + yaml.safe_dump(definition(kind), sort_keys=False, width=120, allow_unicode=True)
        for kind in KINDS
    }


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m stratalog_operator.resources.definitions", description="Write the definitions of all kinds."
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where they are written; made if it is not there")
    folder: Path = parser.parse_args(arguments).folder
    folder.mkdir(parents=True, exist_ok=True)
    texts = render()
    for stale in folder.glob(f"{GROUP}_*.yaml"):
        if stale.name not in texts:
            stale.unlink()
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
