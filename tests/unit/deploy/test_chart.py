"""The charts without a cluster: what helm renders, what their schema refuses, and where their parts come from."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import pytest
import yaml

from stratalog_operator.kube.rights import FOR_OWNERS, RIGHTS, Right, Scope
from stratalog_operator.specs.settings_file import ANNOTATION_SCHEME
from support.helm import NO_HELM, helm_binary
from support.source_tree import REPOSITORY

TestT = TypeVar("TestT", bound=Callable[..., None])
CHART = REPOSITORY / "charts" / "stratalog"
DEFINITIONS = REPOSITORY / "charts" / "stratalog-crds"
HELM = helm_binary()


def needs_helm(test: TestT) -> TestT:
    return pytest.mark.real_helm(pytest.mark.skipif(HELM is None, reason=NO_HELM)(test))


def rendered(*values: str, chart: str = str(CHART)) -> list[dict[str, Any]]:
    command = [str(HELM), "template", "stratalog", chart, "--namespace", "stratalog-system", "--kube-version", "1.34.0"]
    for value in values:
        command += ["--set-json" if "=[" in value or "={" in value else "--set", value]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return [one for one in yaml.safe_load_all(done.stdout) if one]


def rights_of(rules: Sequence[Mapping[str, Any]]) -> set[Right]:
    return {
        Right(verb, group, resource)
        for rule in rules
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


def of_kind(objects: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [one for one in objects if one["kind"] == kind]


def test_what_charts_and_kustomize_take_from_elsewhere_is_as_it_would_be_made_now() -> None:
    command = [sys.executable, str(REPOSITORY / "tools" / "deploy_files.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_definitions_of_the_chart_are_those_of_the_models_and_stay_when_it_goes() -> None:
    names = {path.name for path in (REPOSITORY / "crds").glob("stratalog.dev_*.yaml")}
    assert {path.name for path in (DEFINITIONS / "templates").iterdir()} == names
    for name in names:
        ours = yaml.safe_load((DEFINITIONS / "templates" / name).read_text(encoding="utf-8"))
        assert ours["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
        assert ours == yaml.safe_load((REPOSITORY / "crds" / name).read_text(encoding="utf-8"))


def test_the_chart_gives_the_operators_rights_and_no_others() -> None:
    given = yaml.safe_load((CHART / "files" / "rights.yaml").read_text(encoding="utf-8"))
    assert rights_of(given["watched"]) == RIGHTS[Scope.WATCHED] | FOR_OWNERS
    assert rights_of(given["own"]) == RIGHTS[Scope.OWN]
    assert rights_of(given["whole"]) == RIGHTS[Scope.WHOLE]
    for rule in (rule for rules in given.values() for rule in rules):
        assert "*" not in [*rule["verbs"], *rule["apiGroups"], *rule["resources"]]


def test_the_defaults_satisfy_the_schema_and_every_value_is_in_it() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    assert set(values) == set(schema["properties"]) - {"global"}
    assert not schema["additionalProperties"]
    _is_closed(schema, "values")


def _is_closed(schema: Mapping[str, Any], way: str) -> None:
    """A value that no template reads is a typing error and is refused: the schema lists the keys of every object."""
    for name, one in schema.get("properties", {}).items():
        if one.get("type") == "object" and "properties" in one:
            assert one.get("additionalProperties") is False, f"{way}.{name} takes any word"
            _is_closed(one, f"{way}.{name}")


def test_charts_and_product_have_one_version() -> None:
    project = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    version = re.search(r'^version = "(.*)"$', project, re.MULTILINE)
    assert version is not None
    for chart in (CHART, DEFINITIONS):
        told = yaml.safe_load((chart / "Chart.yaml").read_text(encoding="utf-8"))
        assert (told["version"], told["appVersion"]) == (version[1], version[1])


@needs_helm
def test_helm_finds_nothing_to_mend() -> None:
    for chart in (CHART, DEFINITIONS):
        done = subprocess.run([str(HELM), "lint", "--strict", str(chart)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@needs_helm
def test_by_default_one_cluster_role_holds_in_all_namespaces() -> None:
    made = rendered()
    (everywhere,) = of_kind(made, "ClusterRole")
    assert rights_of(everywhere["rules"]) == RIGHTS[Scope.WATCHED] | FOR_OWNERS | RIGHTS[Scope.WHOLE]
    (own,) = of_kind(made, "Role")
    assert (own["metadata"]["namespace"], rights_of(own["rules"])) == ("stratalog-system", RIGHTS[Scope.OWN])


@needs_helm
def test_with_named_namespaces_the_rights_end_there() -> None:
    made = rendered('watchNamespaces=["one","two"]')
    (everywhere,) = of_kind(made, "ClusterRole")
    assert rights_of(everywhere["rules"]) == RIGHTS[Scope.WHOLE]
    watched = {role["metadata"]["namespace"]: rights_of(role["rules"]) for role in of_kind(made, "Role")}
    ours = RIGHTS[Scope.WATCHED] | FOR_OWNERS
    assert watched == {"one": ours, "two": ours, "stratalog-system": RIGHTS[Scope.OWN]}
    bound = {one["metadata"]["namespace"] for one in of_kind(made, "RoleBinding")}
    assert bound == set(watched)
    (deployment,) = of_kind(made, "Deployment")
    env = {one["name"]: one.get("value") for one in deployment["spec"]["template"]["spec"]["containers"][0]["env"]}
    assert env["STRATALOG_WATCH_NAMESPACES"] == "one two"
    assert "STRATALOG_WATCH_ALL_NAMESPACES" not in env


@needs_helm
@pytest.mark.parametrize(
    "wrong", ["replica=2", "image.tagg=x", "replicas=0", 'watchNamespaces=["A"]', "logLevel=loud", "metrics.port=80"]
)
def test_a_value_that_no_one_reads_or_that_cannot_be_is_refused(wrong: str) -> None:
    with pytest.raises(AssertionError, match=r"schema"):
        rendered(wrong)


@needs_helm
def test_tag_and_digest_together_are_refused() -> None:
    with pytest.raises(AssertionError, match="tag or digest"):
        rendered("image.tag=one", f"image.digest=sha256:{'0' * 64}")


@needs_helm
def test_the_pods_satisfy_the_restricted_standard() -> None:
    made = rendered()
    (deployment,) = of_kind(made, "Deployment")
    for pod in [deployment["spec"]["template"], *of_kind(made, "Pod")]:
        spec = pod["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["image"] == "stratalog:0.1.0"


def test_the_alerts_of_the_chart_are_those_that_are_shipped() -> None:
    ours = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text(encoding="utf-8"))
    assert ours == yaml.safe_load((REPOSITORY / "deploy" / "monitoring" / "alerts.yaml").read_text(encoding="utf-8"))


def test_what_the_chart_scrapes_are_pods_that_the_operator_makes() -> None:
    """The labels and the port that its PodMonitor asks for; the alerts ask for the job that comes of them."""
    golden = REPOSITORY / "tests" / "unit" / "operator" / "golden"
    made = [
        one
        for name in ("smallest_cluster.yaml", "node_of_the_smallest_cluster.yaml")
        for one in yaml.safe_load_all((golden / name).read_text(encoding="utf-8"))
        if one["kind"] == "StatefulSet"
    ]
    scraped = {
        one["spec"]["template"]["metadata"]["labels"]["stratalog.dev/part"]
        for one in made
        if one["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/name"] == "stratalog"
        for container in one["spec"]["template"]["spec"]["containers"]
        for port in container["ports"]
        if port["name"] == "admin"
    }
    assert scraped == {"node", "meta"}
    assert 'job="stratalog"' in (CHART / "files" / "alerts.yaml").read_text(encoding="utf-8")


@needs_helm
def test_nothing_of_the_prometheus_operator_is_made_unless_a_user_asks_for_it() -> None:
    assert not [one for one in rendered() if one["apiVersion"].startswith("monitoring.coreos.com")]


@needs_helm
def test_the_rules_are_the_alerts_and_have_the_labels_that_a_prometheus_looks_for() -> None:
    (rule,) = of_kind(
        rendered("monitoring.prometheusRule.enabled=true", 'monitoring.prometheusRule.labels={"release":"mine"}'),
        "PrometheusRule",
    )
    assert rule["metadata"]["labels"]["release"] == "mine"
    shipped = (REPOSITORY / "deploy" / "monitoring" / "alerts.yaml").read_text(encoding="utf-8")
    assert rule["spec"] == yaml.safe_load(shipped)


@needs_helm
def test_clusters_and_the_operator_are_scraped_where_the_operator_looks_after_them() -> None:
    def monitors(*values: str) -> dict[str, dict[str, Any]]:
        made = of_kind(rendered("monitoring.podMonitor.enabled=true", *values), "PodMonitor")
        return {one["metadata"]["name"]: one["spec"] for one in made}

    made = monitors()
    everywhere, operator = made["stratalog-clusters"], made["stratalog"]
    assert everywhere["namespaceSelector"] == {"any": True}
    assert everywhere["selector"] == {"matchLabels": {"app.kubernetes.io/name": "stratalog"}}
    (clusters,) = everywhere["podMetricsEndpoints"]
    (scheme,) = clusters.pop("relabelings")
    assert clusters == {"port": "admin", "interval": "15s"}
    found = f"__meta_kubernetes_pod_annotation_{re.sub('[^a-z]', '_', ANNOTATION_SCHEME)}"
    assert (scheme["sourceLabels"], scheme["targetLabel"]) == ([found], "__scheme__"), "as Prometheus writes its name"
    assert operator["selector"]["matchLabels"]["app.kubernetes.io/name"] == "stratalog-operator"
    token = '{"credentials":{"name":"main-token","key":"token"}}'
    named = monitors(f"monitoring.podMonitor.authorization={token}", 'watchNamespaces=["one"]')["stratalog-clusters"]
    assert named["namespaceSelector"] == {"matchNames": ["one"]}
    assert named["podMetricsEndpoints"][0]["authorization"] == json.loads(token)
    trusted = '{"ca":{"secret":{"name":"main-ca","key":"ca.crt"}},"serverName":"localhost"}'
    over_tls = monitors(f"monitoring.podMonitor.tlsConfig={trusted}")["stratalog-clusters"]
    assert over_tls["podMetricsEndpoints"][0]["tlsConfig"] == json.loads(trusted)


@needs_helm
def test_kustomize_makes_the_operator_that_the_chart_makes() -> None:
    """Equal, except for names and labels that helm sets: an installation without helm gets the same operator."""
    ours = {one["kind"]: one for one in rendered() if one["kind"] in ("Deployment", "PodDisruptionBudget", "Service")}
    text = (REPOSITORY / "deploy" / "operator" / "operator.yaml").read_text(encoding="utf-8")
    theirs = {one["kind"]: one for one in yaml.safe_load_all(text)}
    pods = [one["Deployment"]["spec"]["template"]["spec"] for one in (ours, theirs)]
    for spec in pods:
        spec.pop("serviceAccountName")
        (container,) = spec["containers"]
        container["image"] = container["image"].partition(":")[0]
        container["env"] = [one for one in container["env"] if one["name"] != "STRATALOG_LEASE_NAME"]
        for one in spec["topologySpreadConstraints"]:
            one.pop("labelSelector")
    assert pods[0] == pods[1]
    assert ours["Deployment"]["spec"]["replicas"] == theirs["Deployment"]["spec"]["replicas"]
    assert ours["Deployment"]["spec"]["strategy"] == theirs["Deployment"]["spec"]["strategy"]
    assert ours["Service"]["spec"]["ports"] == theirs["Service"]["spec"]["ports"]
