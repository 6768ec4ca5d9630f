# Every target sets up what it needs: Python 3.11 and, on Debian or Ubuntu, apt-get are enough to begin with.
# Go and Java are optional: without Go the real S3 server, etcd, helm, the Kubernetes API server and the load generator are skipped,
# without Java the Kafka peer and Spark are, and the run says so.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
PY := $(VENV)/bin/python
# What the targets build from Go modules.
export PATH := $(CURDIR)/.cache/bin:$(PATH)
READY := $(VENV)/.ready
# Beside it: the same packages, and stratalog with its hot path compiled, as the image has it (docs/decisions/0028).
COMPILED := .cache/compiled
COMPILED_READY := $(COMPILED)/.ready
UV_VERSION := 0.13.8
# Extra arguments for the tool behind a target: make test ARGS="-k fence", make demo ARGS=--keep
ARGS ?=
SEEDS ?= 1000
STATES ?= 500000
# The demo's: three nodes, of which a leader is killed, and that come and go; or one.
NODES ?= 3
SECONDS ?= 60
IMAGE ?= stratalog:0.1.0
# What `make test` runs where nobody says what: `quick` leaves out what is marked `thorough`; `all`, which CI runs, does not.
SUITE ?= $(if $(strip $(ARGS)),all,quick)
MARKS_quick := not slow and not thorough
MARKS_all := not slow
# Test processes: one more than cores, for a quarter of their time they wait for the processes that they started.
WORKERS ?= $(shell expr $$(nproc) + 1)

.PHONY: help
help:  ## This list
	@awk -F ':.*## ' '/^[a-z][a-z0-9-]*:.*## /{printf "  make %-10s %s\n", $$1, $$2}' Makefile
	@echo '  ARGS="..." is handed on: make test ARGS="-k fence", make demo ARGS=--keep'

# --- set-up -----------------------------------------------------------------------------------------------------------
.PHONY: setup
setup: $(READY)  ## The virtual environment with the locked dependencies and the stratalog command

$(READY): requirements/dev.txt pyproject.toml tools/venv.sh
	@tools/venv.sh $(VENV)
	@touch $@

.PHONY: compiled
compiled: $(COMPILED_READY)  ## Beside it, an environment with the hot path compiled, as the image has it: 2 minutes, needs a C compiler

$(COMPILED_READY): $(READY) tools/compiled.sh tools/build_hook.py $(shell find core storage_node meta_service cli operator -name '*.py')
	@tools/compiled.sh $(VENV) $(COMPILED)
	@touch $@

.PHONY: kcat
kcat:
	@tools/kcat.sh

.PHONY: chromium
chromium:
	@tools/chromium.sh

.PHONY: shells
shells:
	@tools/shells.sh

.PHONY: prometheus
prometheus:
	@tools/prometheus.sh

# The pipeline's packages and Java. Without them its tests are skipped, and the summary of the run says so.
.PHONY: spark
spark: $(READY)
	@tools/spark.sh $(VENV)

# A real PostgreSQL, and its client. Without them their tests are skipped, and the summary of the run says so.
.PHONY: postgres
postgres: $(READY)
	@tools/postgres.sh $(VENV)

# A real S3 server, built from its Go module. Without Go its tests are skipped, and the summary of the run says so.
.PHONY: s3
s3:
	@tools/versitygw.sh >/dev/null || echo "no real S3 server: its tests are skipped, the summary says so"

# Azure Blob Storage, half a minute, once. Without npm its tests are skipped, and the summary of the run says so.
.PHONY: azurite
azurite:
	@tools/azurite.sh >/dev/null || echo "no azurite: the tests of Azure Blob Storage are skipped, the summary says so"

# helm, built from its Go module, about a minute, once. Without Go or helm the tests of the charts are skipped.
.PHONY: helm
helm:
	@tools/helm.sh >/dev/null || echo "no helm: what the charts render is not tested, the summary says so"

# etcd, built from its Go module. Without Go its tests are skipped, and the summary of the run says so.
.PHONY: etcd
etcd:
	@tools/etcd.sh >/dev/null || echo "no etcd: its tests are skipped, the summary says so"

.PHONY: apiserver
apiserver:  ## A real Kubernetes API server for the operator's tests, from its Go module: 5 to 15 minutes, once
	@tools/kube_apiserver.sh >/dev/null

.PHONY: wheel
wheel: $(READY)  ## dist/stratalog-*.whl for pip; its hot path is compiled where a C compiler and Python's headers are there
	@mkdir -p dist
	@tools/wheel.sh $(VENV) dist

# --- main jobs ----------------------------------------------------------------------------------------------------------
.PHONY: demo
demo: $(READY) etcd  ## 336,776 real flights through topics, seals, the cold tier and back; a leader is killed, nodes come and go (NODES=1: one node; ARGS=--secure: over TLS, with logins and rules)
	@$(PY) tools/demo.py --nodes $(NODES) $(ARGS)

.PHONY: demo-pipeline
demo-pipeline: $(READY) spark  ## The flights in the cold tier become a table of delays and a plot, by Spark, with no server there
	@$(PY) tools/demo_pipeline.py $(ARGS)

.PHONY: test
test: $(READY) kcat chromium shells prometheus s3 azurite etcd helm spark postgres  ## The tests of every day, below 8 minutes on 2 cores; SUITE=all: every test that fits in minutes, as CI runs them
	@$(PY) -m pytest -n $(WORKERS) --dist worksteal -m '$(MARKS_$(SUITE))' $(ARGS)

# Those that drive real processes: the others look into modules, and put something in their place.
.PHONY: test-compiled
test-compiled: $(COMPILED_READY) kcat s3 etcd  ## The tests of real processes against the compiled hot path: 15 minutes
	@$(COMPILED)/bin/python -m pytest -n $(WORKERS) --dist worksteal -m '$(MARKS_all)' tests/clients tests/cluster tests/crash tests/damage --ignore tests/clients/test_compiled_node.py $(ARGS)

.PHONY: lint
lint: $(READY)  ## ruff, import contracts and circles, mypy
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/lint-imports --no-logo
	@$(PY) -m pytest -q --no-header tests/unit/house/test_house_imports.py
	@$(VENV)/bin/mypy

.PHONY: format
format: $(READY)  ## Rewrite the code in the house's layout
	@$(VENV)/bin/ruff check --fix-only --quiet .
	@$(VENV)/bin/ruff format .

.PHONY: bench
bench: $(COMPILED_READY) etcd  ## Measure beside a TCP echo and Apache Kafka; writes bench/results/latest.json and .md
	@PYTHONPATH=bench $(COMPILED)/bin/python -m stratalog_bench $(ARGS)

.PHONY: bench-interpreted
bench-interpreted: $(READY) etcd  ## The same without a compiled hot path, as `make setup` installs it
	@PYTHONPATH=bench $(PY) -m stratalog_bench $(ARGS)

.PHONY: bench-operator
bench-operator: $(READY) etcd  ## Memory, idle writes and times of the operator (needs kube-apiserver); bench/results/operator.md
	@PYTHONPATH=tests:operator $(PY) bench/operator_bench.py

.PHONY: bench-pipeline
bench-pipeline: $(READY) spark  ## The Spark source beside Parquet, JSON lines and Spark's Kafka source; writes bench/results/pipeline.md
	@PYTHONPATH=bench:tests:tools $(PY) -m stratalog_bench.pipeline $(ARGS)

.PHONY: sim
sim: $(READY)  ## SEEDS=1000: whole clusters on simulated machines; prints the history of the first that breaks a promise
	@PYTHONPATH=sim:tests $(PY) -m stratalog_sim --seeds $(SEEDS) $(ARGS)

.PHONY: explore
explore: $(READY)  ## STATES=500000: every history of small worlds, up to that many states of each
	@PYTHONPATH=sim:tests $(PY) -m stratalog_sim --explore $(STATES)

.PHONY: sim-bugs
sim-bugs: $(READY)  ## SEEDS=1000: plants each deliberate bug, and says which seed finds it
	@PYTHONPATH=sim:tests $(PY) -m stratalog_sim --bugs --seeds $(SEEDS) $(ARGS)

.PHONY: crash
crash: $(READY) s3  ## 200 rounds of kill -9 at random moments (8 of them are in make test)
	@$(PY) -m pytest -m '' tests/crash --crash-rounds 200 --timeout 3600 $(ARGS)

.PHONY: chaos
chaos: $(READY) etcd  ## SECONDS=60: parts of a real cluster killed, frozen, cut off, wiped at random; nodes come and go; meta service away for 60 s
	@$(PY) -m pytest -q -m slow tests/cluster --chaos-seconds $(SECONDS) $(ARGS)

.PHONY: image
image:  ## IMAGE=stratalog:0.1.0: the container image of all parts, by docker
	@docker build -t $(IMAGE) .

.PHONY: image-pipeline
image-pipeline:  ## On top of it: the image of ArchiveJobs, with the pipeline's packages and Java
	@docker build -t $(subst stratalog:,stratalog-pipeline:,$(IMAGE)) -f deploy/pipeline/Dockerfile --build-arg STRATALOG=$(IMAGE) requirements

.PHONY: e2e
e2e: $(READY)  ## All scenarios on a real Kubernetes: the one that KUBECONFIG names, else one by kind; needs kubectl, helm, docker
	@$(PY) -m pytest e2e --timeout 2400 $(ARGS)

.PHONY: e2e-fast
e2e-fast: $(READY)  ## Install, offload, scale out, scale in, volumes, topics: below 15 minutes on a cluster that is there
	@$(PY) -m pytest e2e -m fast --timeout 1200 $(ARGS)

.PHONY: soak
soak: $(READY) kcat s3 etcd  ## The slow tests
	@$(PY) -m pytest -m slow --timeout 7200 $(ARGS)

.PHONY: test-clients
test-clients: $(READY)  ## Clients in Java, Go and JavaScript log in, write and read by each mechanism; needs Java, Maven, Go and Node.js, or skips
	@$(PY) -m pytest -m slow tests/clients/test_clients_of_other_languages.py $(ARGS)

.PHONY: wheel-test
wheel-test: $(READY)  ## The wheel, installed in a fresh environment, runs a node and its clients: 2 minutes
	@$(PY) -m pytest -m slow tests/clients/test_wheel_installed.py $(ARGS)

# --- upkeep -----------------------------------------------------------------------------------------------------------
.PHONY: sbom
sbom: $(READY)  ## dist/*.cdx.json: what the image and the pipeline consist of, with hashes (CycloneDX)
	@tools/audit.sh sbom dist

.PHONY: audit
audit: $(READY)  ## Look the locked dependencies up among known vulnerabilities (asks the package index; needs network)
	@tools/audit.sh audit

.PHONY: lock
lock: $(READY)  ## Resolve the dependencies again into requirements/*.txt (hashes only, no addresses)
	@tools/lock.sh $(UV_VERSION)

.PHONY: crds
crds: $(READY)  ## Write crds/ from the models of the kinds, and what charts/ and deploy/ take from there and from the operator's rights
	@$(PY) -m stratalog_operator.resources.definitions crds
	@$(PY) tools/deploy_files.py

.PHONY: clean
clean:  ## Remove what the targets made, downloads kept in .cache excepted
	@rm -rf $(VENV) build dist demo-data .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
