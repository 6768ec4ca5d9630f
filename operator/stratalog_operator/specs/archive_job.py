"""The CronJob and the Jobs of an ArchiveJob: pods that run `stratalog pipeline run` and leave their report as the
termination message.

The pods have no right to the Kubernetes API, no token of the cluster unless they compact, and nothing but a folder for
temporary files. They belong to the ArchiveJob and go with it; what they wrote stays.

Pure. Source: docs/operator.md section 9.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from stratalog_operator.resources.archive_job import ArchiveJobSpec, ArchiveTask, CompactTask, ExportTask
from stratalog_operator.resources.cluster import Image
from stratalog_operator.resources.names import ANNOTATION_REQUESTED_AT, LABEL_ARCHIVE_JOB
from stratalog_operator.specs.certificate_secrets import trust_secret
from stratalog_operator.specs.client_security import AUTHORITIES_FOLDER
from stratalog_operator.specs.cold_tier import (
    add_key_file,
    bucket_url,
    store_environment,
    store_identity,
    store_labels,
)
from stratalog_operator.specs.objects import Cluster, Manifest, digest, owner_reference, selector, wanted
from stratalog_operator.specs.pods import TOKEN_FILE, TOKEN_FOLDER, container, pod_spec

CONTAINER: Final = "job"
REPORT_FILE: Final = "/dev/termination-log"
SCHEMA_FOLDER: Final = "/etc/stratalog/schema"
CLIENT_FOLDER: Final = "/etc/stratalog/client"
GRACE_SECONDS: Final = 60
START_LATE_SECONDS: Final = 6 * 3600
"""A run that could not start in time, because Kubernetes was away, starts within this time or is left out."""
REQUESTED_KEPT_SECONDS: Final = 7 * 24 * 3600
"""The Job of a request, after its end."""
_LONGEST_NAME: Final = 52
"""Of a CronJob: the names of its Jobs and pods have more letters."""
_FINAL_CODES: Final = (1, 2)
"""Findings, and what is refused: another try ends in the same way."""


def cron_job_name(name: str) -> str:
    """Of the ArchiveJob of this name; a long one is cut, and ends with a digest of itself."""
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 17].rstrip('-')}-{digest(name)}"


def requested_job_name(name: str, requested_at: str) -> str:
    """Of a request, which its time names: it is made once, whenever the operator is killed."""
    return f"{cron_job_name(name)[:_LONGEST_NAME]}-{digest(requested_at)[:10]}"


def why_impossible(cluster: Cluster, spec: ArchiveJobSpec) -> str:
    """What the definition cannot see, in words; empty if there is nothing."""
    if cluster.spec.cold_tier is None:
        return "the cluster has no object store, so there is no cold data: give it spec.coldTier"
    if spec.image is None and cluster.spec.image.digest is not None:
        return "the image of the cluster is named by a digest, and that of its jobs has another one: give spec.image"
    if spec.action != "Archive" or spec.archive is None or spec.archive.schema_config_map_ref is None:
        return ""
    if spec.archive.schema_key is None and (spec.archive.kind != "avro" or not spec.archive.confluent):
        return "archive: a schema for each id is for Avro records with confluent: true; otherwise give schemaKey"
    return ""


def cron_job(cluster: Cluster, cluster_id: str, name: str, uid: str, spec: ArchiveJobSpec) -> Manifest:
    """Requires: it has a schedule, and nothing is impossible about it."""
    body: Manifest = {
        "spec": {
            "schedule": spec.schedule,
            "timeZone": spec.time_zone or "Etc/UTC",
            "suspend": spec.suspend,
            "concurrencyPolicy": spec.concurrency_policy,
            "startingDeadlineSeconds": START_LATE_SECONDS,
            "successfulJobsHistoryLimit": spec.successful_runs_kept,
            "failedJobsHistoryLimit": spec.failed_runs_kept,
            "jobTemplate": {
                "metadata": {"labels": {**_labels(cluster, name)}},
                "spec": _job(cluster, cluster_id, name, spec),
            },
        }
    }
    owner = owner_reference("ArchiveJob", name, uid)
    return wanted("batch/v1", "CronJob", cron_job_name(name), cluster, _labels(cluster, name), body, owner=owner)


def requested_job(
    cluster: Cluster, cluster_id: str, name: str, uid: str, spec: ArchiveJobSpec, requested_at: str
) -> Manifest:
    """The Job of one request."""
    job = {**_job(cluster, cluster_id, name, spec), "ttlSecondsAfterFinished": REQUESTED_KEPT_SECONDS}
    return wanted(
        "batch/v1",
        "Job",
        requested_job_name(name, requested_at),
        cluster,
        _labels(cluster, name),
        {"spec": job},
        owner=owner_reference("ArchiveJob", name, uid),
        annotations={ANNOTATION_REQUESTED_AT: requested_at},
    )


def _labels(cluster: Cluster, name: str) -> dict[str, str]:
    return selector(cluster, "job", **{LABEL_ARCHIVE_JOB: name})


def _job(cluster: Cluster, cluster_id: str, name: str, spec: ArchiveJobSpec) -> Manifest:
    cluster = _with_credentials(cluster, spec)
    labels: Manifest = {
        "app.kubernetes.io/name": "stratalog-job",
        **_labels(cluster, name),
        **store_labels(cluster),
    }
    return {
        "backoffLimit": spec.retries,
        "activeDeadlineSeconds": spec.deadline_seconds,
        # A pod that a drain of its machine took does not count as a try; findings and refusals are not tried again.
        "podFailurePolicy": {
            "rules": [
                {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                {
                    "action": "FailJob",
                    "onExitCodes": {"containerName": CONTAINER, "operator": "In", "values": [*_FINAL_CODES]},
                },
            ]
        },
        "template": {"metadata": {"labels": labels}, "spec": _pod(cluster, cluster_id, spec)},
    }


def _pod(cluster: Cluster, cluster_id: str, spec: ArchiveJobSpec) -> Manifest:
    volumes: list[Manifest] = []
    mounts: list[Manifest] = []
    add_key_file(cluster, volumes, mounts)
    env: list[Manifest] = [{"name": "HOME", "value": "/tmp"}, *store_environment(cluster)]
    if spec.spark.master is not None:
        address: Manifest = {"fieldRef": {"fieldPath": "status.podIP"}}
        env.append({"name": "SPARK_LOCAL_IP", "valueFrom": address})
    if spec.action == "Compact":
        _add_token(cluster, spec, volumes, mounts, env)
    if spec.archive is not None and spec.archive.schema_config_map_ref is not None:
        volumes.append({"name": "schema", "configMap": {"name": spec.archive.schema_config_map_ref}})
        mounts.append({"name": "schema", "mountPath": SCHEMA_FOLDER, "readOnly": True})
    if spec.export is not None and spec.export.client_config_secret_ref is not None:
        secret: Manifest = {"secretName": spec.export.client_config_secret_ref, "defaultMode": 0o440}
        volumes.append({"name": "client", "secret": secret})
        mounts.append({"name": "client", "mountPath": CLIENT_FOLDER, "readOnly": True})
        env.append({"name": "STRATALOG_CLIENT_CONFIG", "value": f"{CLIENT_FOLDER}/client.properties"})
    image = _image(cluster, spec)
    made = container(
        cluster,
        CONTAINER,
        [_literal(word) for word in _command(cluster, cluster_id, spec)],
        resources=spec.resources,
        ports={},
        mounts=mounts,
        env=env,
        probes={"terminationMessagePath": REPORT_FILE, "terminationMessagePolicy": "File"},
        image=image.reference,
        pull_policy=image.pull_policy,
    )
    more: Manifest = {"restartPolicy": "Never", **store_identity(cluster)}
    if spec.node_selector:
        more["nodeSelector"] = {**spec.node_selector}
    if spec.tolerations:
        more["tolerations"] = [one.model_dump(by_alias=True, exclude_none=True) for one in spec.tolerations]
    if image.pull_secrets:
        more["imagePullSecrets"] = [{"name": one} for one in image.pull_secrets]
    return pod_spec(cluster, made, volumes, [], grace_seconds=GRACE_SECONDS, tmp_size=spec.scratch_size, more=more)


def _with_credentials(cluster: Cluster, spec: ArchiveJobSpec) -> Cluster:
    cold = cluster.spec.cold_tier
    if spec.credentials_secret_ref is None or cold is None:
        return cluster
    own = cold.model_copy(update={"credentials_secret_ref": spec.credentials_secret_ref, "service_account_name": None})
    return replace(cluster, spec=cluster.spec.model_copy(update={"cold_tier": own}))


def _image(cluster: Cluster, spec: ArchiveJobSpec) -> Image:
    """Of the same version as the cluster's, unless it is named: a job reads what its nodes write."""
    if spec.image is not None:
        return spec.image
    own = cluster.spec.image
    return own.model_copy(update={"repository": f"{own.repository}-pipeline", "digest": None})


def _add_token(
    cluster: Cluster, spec: ArchiveJobSpec, volumes: list[Manifest], mounts: list[Manifest], env: list[Manifest]
) -> None:
    """For the meta service, which replaces manifests for a compaction."""
    secret: Manifest = {
        "secretName": spec.token_secret_ref or cluster.token_secret,
        "items": [{"key": "token", "path": "token"}],
        "defaultMode": 0o440,
    }
    volumes.append({"name": "token", "secret": secret})
    mounts.append({"name": "token", "mountPath": TOKEN_FOLDER, "readOnly": True})
    env.append({"name": "STRATALOG_TOKEN_FILE", "value": TOKEN_FILE})
    if cluster.has_internal_tls:
        trusted: Manifest = {"secretName": trust_secret(cluster), "defaultMode": 0o440}
        volumes.append({"name": "ca", "secret": trusted})
        mounts.append({"name": "ca", "mountPath": AUTHORITIES_FOLDER, "readOnly": True})
        env.append({"name": "STRATALOG_CERTIFICATE_FOLDER", "value": AUTHORITIES_FOLDER})


# The command ----------------------------------------------------------------------------------------------------------
def _literal(word: str) -> str:
    """As Kubernetes is to pass it on: it puts variables of the container, such as the store's key, in place of
    `$(NAME)`, and URLs and names of an ArchiveJob are other people's."""
    return word.replace("$", "$$")


def _command(cluster: Cluster, cluster_id: str, spec: ArchiveJobSpec) -> list[str]:
    bucket = bucket_url(cluster)
    assert bucket is not None, "nothing is impossible about it"
    words = ["stratalog", "pipeline", "run", "--report", REPORT_FILE]
    topics = ",".join(sorted(spec.topics))
    if spec.action == "Archive":
        words += ["--topics", topics]
    words += ["--", spec.action.lower(), "--bucket", bucket]
    if topics and spec.action != "Archive":
        words += ["--topics", topics]
    words += ["--meta", cluster.meta_urls] if spec.action == "Compact" else ["--cluster", cluster_id]
    if spec.archive is not None:
        words += _archive_words(spec.archive)
    if spec.action == "Compact":
        words += _compact_words(spec.compact or CompactTask())
    if spec.export is not None:
        words += _export_words(spec.export)
    if spec.spark.master is not None:
        return [*words, "--master", spec.spark.master]
    return [*words, "--threads", str(spec.spark.cores)]


def _archive_words(task: ArchiveTask) -> Sequence[str]:
    words = ["--to", task.to, "--kind", task.kind, "--by", task.by, "--format", task.format, "--on-gap", task.on_gap]
    if task.schema_config_map_ref is not None:
        words += ["--schema", f"{SCHEMA_FOLDER}/{task.schema_key}" if task.schema_key else SCHEMA_FOLDER]
    if task.message is not None:
        words += ["--message", task.message]
    return [*words, "--confluent"] if task.confluent else words


def _compact_words(task: CompactTask) -> Sequence[str]:
    words = ["--object-bytes", f"{task.object_bytes}B"]
    return [*words, "--pack"] if task.pack else words


def _export_words(task: ExportTask) -> Sequence[str]:
    return ["--to", task.to, "--as", task.format]
