"""What the operator wants, in a real API server: taken as it is, restricted, and quiet when repeated."""

from __future__ import annotations

from typing import Any

import pytest

from stratalog_operator.observe import parse
from stratalog_operator.plan.ownership import owns
from stratalog_operator.resources.names import FIELD_MANAGER
from support.api_server import NO_API_SERVER, ApiServer, apiserver_binary
from support.golden_specs import scenes

pytestmark = [
    pytest.mark.real_apiserver,
    pytest.mark.skipif(apiserver_binary() is None, reason=NO_API_SERVER),
]
OBJECTS: list[Any] = [made for objects in scenes().values() for made in objects]
_PATHS = {
    "v1": "/api/v1",
    "apps/v1": "/apis/apps/v1",
    "batch/v1": "/apis/batch/v1",
    "policy/v1": "/apis/policy/v1",
    "networking.k8s.io/v1": "/apis/networking.k8s.io/v1",
}
_PLURALS = {"NetworkPolicy": "networkpolicies"}


def _path(made: Any, namespace: str) -> str:
    plural = _PLURALS.get(made["kind"], f"{made['kind'].lower()}s")
    return f"{_PATHS[made['apiVersion']]}/namespaces/{namespace}/{plural}/{made['metadata']['name']}"


def _in(made: Any, namespace: str) -> Any:
    return {**made, "metadata": {**made["metadata"], "namespace": namespace}}


def test_every_object_is_taken_and_repeating_it_changes_nothing(api: ApiServer) -> None:
    namespace = api.namespace("wanted")
    for made in OBJECTS:
        path, body = _path(made, namespace), _in(made, namespace)
        first = api.apply(path, body, FIELD_MANAGER, force=True)
        # The server itself writes a claim once more after it was made.
        settled = api.apply(path, body, FIELD_MANAGER)
        again = api.apply(path, body, FIELD_MANAGER)

        assert first.is_ok, (path, first.message)
        (ours,) = parse.fields(made["kind"], [again.body]).values()
        assert made["kind"] == "Secret" or owns(ours, body), f"{path}: would be put back without end"
        assert again.body["metadata"]["resourceVersion"] == settled.body["metadata"]["resourceVersion"], path


def test_every_pod_is_admitted_under_the_restricted_standard(api: ApiServer) -> None:
    labels = {
        "pod-security.kubernetes.io/enforce": "restricted",
        "pod-security.kubernetes.io/enforce-version": "latest",
    }
    made = api.ask("POST", "/api/v1/namespaces", {"metadata": {"name": "restricted", "labels": labels}})
    assert made.is_ok, made.message
    path = "/api/v1/namespaces/restricted/pods?dryRun=All"
    bad = {"metadata": {"name": "bad"}, "spec": {"containers": [{"name": "a", "image": "a"}]}}

    assert "restricted" in api.ask("POST", path, bad).message, "the standard is not enforced: the test proves nothing"
    sets = [one for one in OBJECTS if one["kind"] in ("StatefulSet", "CronJob", "Job")]
    assert {one["kind"] for one in sets} == {"StatefulSet", "CronJob", "Job"}
    for number, wanted in enumerate(sets):
        template = wanted["spec"].get("jobTemplate", wanted)["spec"]["template"]
        claimed = wanted["spec"].get("volumeClaimTemplates", [])
        extra = [
            {"name": one["metadata"]["name"], "persistentVolumeClaim": {"claimName": "as-of-the-set"}}
            for one in claimed
        ]
        spec = {**template["spec"], "volumes": [*template["spec"]["volumes"], *extra]}
        pod = {"metadata": {**template["metadata"], "name": f"pod-{number}"}, "spec": spec}
        answer = api.ask("POST", path, pod)

        assert answer.is_ok, (wanted["metadata"]["name"], answer.message)
