"""What the operator may ask of Kubernetes, and how a request is read."""

from __future__ import annotations

import pytest

from stratalog_operator.kube.client import path_of
from stratalog_operator.kube.rights import FOR_OWNERS, RIGHTS, Right, Scope, is_granted, right_of, rules
from stratalog_operator.resources.kinds import KINDS
from stratalog_operator.resources.names import GROUP


@pytest.mark.parametrize(
    ("method", "path", "right"),
    [
        ("GET", path_of("Pod", "data"), Right("list", "", "pods")),
        ("GET", path_of("Pod", ""), Right("list", "", "pods")),
        ("GET", path_of("Pod", "data", "a"), Right("get", "", "pods")),
        ("GET", path_of("Namespace", "", "data"), Right("get", "", "namespaces")),
        ("PATCH", path_of("PersistentVolume", "", "a"), Right("patch", "", "persistentvolumes")),
        ("DELETE", path_of("StatefulSet", "data", "a"), Right("delete", "apps", "statefulsets")),
        ("PUT", path_of("Lease", "data", "a"), Right("update", "coordination.k8s.io", "leases")),
        ("POST", path_of("Secret", "data"), Right("create", "", "secrets")),
        (
            "PATCH",
            f"{path_of('StorageNode', 'data', 'a')}/status",
            Right("patch", GROUP, "storagenodes/status"),
        ),
        ("GET", f"/apis/{GROUP}/v1alpha1", None),
        ("GET", "/readyz", None),
    ],
)
def test_a_request_is_read_as_the_right_that_it_needs(method: str, path: str, right: Right | None) -> None:
    assert right_of(method, path) == right


def test_nothing_is_asked_for_with_a_star_and_secrets_are_never_listed() -> None:
    rights = [right for scope in RIGHTS.values() for right in scope] + list(FOR_OWNERS)

    assert not [right for right in rights if "*" in (right.verb, right.group, right.resource)]
    assert {right.verb for right in rights if right.resource == "secrets"} == {"get", "create", "patch"}
    assert not [right for right in rights if right.resource == "persistentvolumes" and right.verb == "delete"]


def test_what_users_write_is_never_made_or_deleted_by_the_operator() -> None:
    for kind in KINDS:
        if kind.name in ("StorageNode", "ReadOnlyMount"):
            continue
        for verb in ("create", "delete", "update"):
            assert not is_granted(Right(verb, GROUP, kind.plural)), (verb, kind.plural)


def test_one_namespace_needs_no_right_in_the_whole_of_kubernetes_but_in_volumes() -> None:
    assert {right.resource for right in RIGHTS[Scope.WHOLE]} == {"persistentvolumes"}


def test_rights_are_written_as_rules_in_a_fixed_order() -> None:
    made = rules([Right("list", "", "pods"), Right("delete", "", "pods"), Right("get", "apps", "statefulsets")])

    assert made == [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["delete", "list"]},
        {"apiGroups": ["apps"], "resources": ["statefulsets"], "verbs": ["get"]},
    ]
