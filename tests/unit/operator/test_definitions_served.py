"""The definitions in a real API server: what it refuses and in which words, what it fills in, who owns which field."""

from __future__ import annotations

import pytest
import yaml

from stratalog_operator.resources.kinds import CLUSTER, KINDS, NODE, POOL, TOPIC, Kind
from stratalog_operator.resources.names import FIELD_MANAGER, GROUP, STATUS_FIELD_MANAGER, VERSION
from support.api_server import MERGE, NO_API_SERVER, ApiServer, apiserver_binary
from support.kind_samples import CASES, RuleCase, sample
from support.source_tree import REPOSITORY

EXAMPLES = sorted((REPOSITORY / "deploy" / "examples").glob("*.yaml"))

pytestmark = [
    pytest.mark.real_apiserver,
    pytest.mark.skipif(apiserver_binary() is None, reason=NO_API_SERVER),
]


def _path(kind: Kind, namespace: str, name: str = "") -> str:
    return f"/apis/{GROUP}/{VERSION}/namespaces/{namespace}/{kind.plural}" + (f"/{name}" if name else "")


@pytest.mark.fault("image-etcd-states-version")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_rule_lets_pass_and_refuses_in_its_own_words(api: ApiServer, case: RuleCase) -> None:
    namespace = "default"
    if case.before is None:
        good, bad = (
            api.ask("POST", f"{_path(case.kind, namespace)}?dryRun=All", sample(case.kind, changes))
            for changes in (case.good, case.bad)
        )
    else:
        old = sample(case.kind, case.before)
        name = old["metadata"]["name"]
        namespace = api.namespace(f"rule-{CASES.index(case)}")
        made = api.ask("POST", _path(case.kind, namespace), old)
        assert made.is_ok, made.message
        version = made.body["metadata"]["resourceVersion"]
        stamped = {"metadata.resourceVersion": version}
        good, bad = (
            api.ask(
                "PUT",
                f"{_path(case.kind, namespace, name)}?dryRun=All",
                sample(case.kind, {**case.before, **changes, **stamped}),
            )
            for changes in (case.good, case.bad)
        )

    assert good.is_ok, good.message
    assert bad.code == 422
    assert case.message in bad.message


def test_the_server_takes_each_example(api: ApiServer) -> None:
    kinds = {kind.name: kind for kind in KINDS}
    found = [one for path in EXAMPLES for one in yaml.safe_load_all(path.read_text("utf-8")) if one["kind"] in kinds]
    assert {one["kind"] for one in found} > {"StorageCluster", "StorageUser", "TopicStorage"}
    for one in found:
        made = api.ask("POST", f"{_path(kinds[one['kind']], 'default')}?dryRun=All", one)
        assert made.is_ok, made.message


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_the_server_fills_in_what_the_model_does(api: ApiServer, kind: Kind) -> None:
    """So the plan may read objects by the models, whoever filled them in."""
    given = sample(kind)
    made = api.ask("POST", f"{_path(kind, 'default')}?dryRun=All", given)

    assert made.is_ok, made.message
    mine = kind.spec.model_validate(given["spec"]).model_dump(by_alias=True, exclude_none=True, mode="json")
    assert made.body["spec"] == mine


@pytest.mark.fault("topicstorage-names-retention-adopts")
def test_a_topic_that_names_no_setting_is_stored_without_one(api: ApiServer) -> None:
    """A default that the API server writes into the object would override that of the cluster."""
    namespace = api.namespace("unnamed")
    bare = {"clusterRef": "main", "topicName": "flights"}
    body = {"apiVersion": f"{GROUP}/{VERSION}", "kind": "TopicStorage", "metadata": {"name": "flights"}, "spec": bare}
    made = api.ask("POST", _path(TOPIC, namespace), body)
    assert made.is_ok, made.message

    policies = {"deletionPolicy": "Retain", "adoption": "CreateOnly"}
    assert made.body["spec"] == {**bare, **policies, "config": {}, "tiering": {}}


def test_unknown_fields_are_pruned_and_statuses_are_written_apart(api: ApiServer) -> None:
    namespace = api.namespace("pruned")
    path = _path(TOPIC, namespace, "flights")
    made = api.ask("POST", _path(TOPIC, namespace), sample(TOPIC, {"spec.nobody": 1, "status": {"topicId": "x"}}))
    assert made.is_ok, made.message
    api.ask("PATCH", f"{path}/status", {"status": {"topicId": "y"}, "spec": {"shards": 9}}, kind=MERGE)
    found = api.ask("GET", path).body

    assert "nobody" not in found["spec"]
    assert found["spec"]["shards"] == 3
    assert found["status"] == {"topicId": "y", **_status_defaults(TOPIC)}


def _status_defaults(kind: Kind) -> dict[str, object]:
    empty = kind.status().model_dump(by_alias=True, exclude_none=True, mode="json")
    return {key: value for key, value in empty.items() if key != "topicId"}


def test_a_pool_is_scaled_without_being_edited(api: ApiServer) -> None:
    namespace = api.namespace("scaled")
    path = _path(POOL, namespace, "hot")
    assert api.ask("POST", _path(POOL, namespace), sample(POOL)).is_ok
    status = {"status": {"replicas": 3, "selector": "stratalog.dev/pool=hot"}}
    assert api.ask("PATCH", f"{path}/status", status, kind=MERGE).is_ok
    scale = api.ask("GET", f"{path}/scale").body
    scaled = api.ask("PATCH", f"{path}/scale", {"spec": {"replicas": 5}}, kind=MERGE)

    assert scale["status"] == {"replicas": 3, "selector": "stratalog.dev/pool=hot"}
    assert scaled.is_ok, scaled.message
    assert api.ask("GET", path).body["spec"]["replicas"] == 5


def test_the_operator_and_a_person_own_different_fields_of_a_node(api: ApiServer) -> None:
    """The operator's apply does not revert a person's fields, and no person can change the operator's fields without a
    conflict."""
    namespace = api.namespace("owned")
    path = _path(NODE, namespace, "main-hot-7")
    ours = sample(NODE)
    assert api.apply(path, ours, FIELD_MANAGER).is_ok
    assert api.ask("PATCH", f"{path}?fieldManager=kubectl-edit", {"spec": {"retire": True}}, kind=MERGE).is_ok

    again = api.apply(path, ours, FIELD_MANAGER)
    theirs = api.apply(path, {**ours, "spec": {**ours["spec"], "retire": False}}, "somebody")

    assert again.is_ok and again.body["spec"]["retire"] is True
    assert theirs.code == 409 and "kubectl-edit" in theirs.message


def test_what_is_wished_no_more_goes_with_the_next_apply(api: ApiServer) -> None:
    """`retire` set by us is taken back by leaving it out: no value of a user is touched by that."""
    namespace = api.namespace("taken-back")
    path = _path(NODE, namespace, "main-hot-7")
    assert api.apply(path, sample(NODE, {"spec.retire": True}), FIELD_MANAGER).body["spec"]["retire"] is True

    assert api.apply(path, sample(NODE), FIELD_MANAGER).body["spec"]["retire"] is False


def test_an_apply_that_changes_nothing_leaves_the_object_as_it_is(api: ApiServer) -> None:
    namespace = api.namespace("unchanged")
    path = _path(CLUSTER, namespace, "main")
    first = api.apply(path, sample(CLUSTER), FIELD_MANAGER).body
    condition = {
        "type": "Ready",
        "status": "True",
        "reason": "AllServe",
        "message": "",
        "observedGeneration": 1,
        "lastTransitionTime": "2013-01-01T00:00:00Z",
    }
    status = {
        "apiVersion": first["apiVersion"],
        "kind": first["kind"],
        "status": {"observedGeneration": 1, "conditions": [condition]},
    }
    told = api.apply(f"{path}/status", status, STATUS_FIELD_MANAGER)
    assert told.is_ok, told.message
    again = api.apply(path, sample(CLUSTER), FIELD_MANAGER).body

    assert again["metadata"]["resourceVersion"] == told.body["metadata"]["resourceVersion"]
    assert again["metadata"]["generation"] == first["metadata"]["generation"]
    assert again["status"]["conditions"] == [condition]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_column_is_served_and_the_short_name_and_category_are(api: ApiServer, kind: Kind) -> None:
    resources = api.ask("GET", f"/apis/{GROUP}/{VERSION}").body["resources"]
    (mine,) = [one for one in resources if one["name"] == kind.plural]
    table = api.table(_path(kind, "default"))

    assert mine["shortNames"] == [kind.short_name] and mine["categories"] == ["stratalog"]
    assert [one["name"] for one in table["columnDefinitions"]] == ["Name", *(column.name for column in kind.columns)]
