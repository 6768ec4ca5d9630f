# One image for all parts of a cluster: storage node, meta service, operator, command line, and the etcd of small clusters.
#
#   docker build -t stratalog:0.1.0 .
#
# Needs no BuildKit and no other image than this one. It runs as user 10001 with a read-only root: what a part writes goes
# to the volumes that it is given.
FROM python:3.11-slim AS build

# The compiler of the hot path (docs/decisions/0028), which stays behind; where Python is Debian's own, its headers are a package.
RUN apt-get update -qq \
 && apt-get install -y -qq --no-install-recommends gcc libc6-dev \
 && { test -e "$(python -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" || apt-get install -y -qq --no-install-recommends python3-dev; }
COPY requirements/build.txt requirements/all.txt /build/requirements/
# The first environment builds and stays behind; the second is the image's, and holds no pip.
RUN python -m venv /opt/build && python -m venv --without-pip /opt/stratalog
RUN /opt/build/bin/python -m pip install --no-cache-dir --require-hashes --no-deps -r /build/requirements/build.txt
# etcd from its Go modules, whose versions and hashes are locked in tools/etcd.
COPY tools/etcd /build/etcd
RUN cd /build/etcd && export CGO_ENABLED=0 GOTOOLCHAIN=local GOFLAGS="-mod=readonly -trimpath -buildvcs=false" \
 && /opt/build/bin/go build -ldflags "-s -w" -o /opt/stratalog/bin/etcd go.etcd.io/etcd/server/v3 \
 && /opt/build/bin/go build -ldflags "-s -w" -o /opt/stratalog/bin/etcdctl go.etcd.io/etcd/etcdctl/v3 \
 && rm -rf /root/go /root/.cache
RUN /opt/build/bin/python -m pip --python /opt/stratalog/bin/python install \
    --no-cache-dir --no-compile --require-hashes --no-deps -r /build/requirements/all.txt

COPY pyproject.toml README.md LICENSE CHANGELOG.md /build/
COPY tools/build_hook.py /build/tools/
COPY core /build/core
COPY storage_node /build/storage_node
COPY meta_service /build/meta_service
COPY cli /build/cli
COPY operator /build/operator
COPY pipeline /build/pipeline
WORKDIR /build
RUN HATCH_BUILD_HOOK_ENABLE_CUSTOM=1 /opt/build/bin/python -m hatchling build -t wheel -d /build/dist \
 && /opt/build/bin/python -m pip --python /opt/stratalog/bin/python install \
    --no-cache-dir --no-compile --no-index --no-deps /build/dist/*.whl
# A class for each kind and call of Kubernetes: imported on demand, demanded by nobody, and a fifth of it all. The last line
# would end with an error if somebody did. Nothing can be compiled later, for the root is read-only.
RUN rm -r /opt/stratalog/lib/python3*/site-packages/kubernetes/client/api \
    /opt/stratalog/lib/python3*/site-packages/kubernetes/aio/client/api \
 && /opt/stratalog/bin/python -m compileall -q -j 0 -x 'kubernetes/.*/models/' /opt/stratalog/lib \
 && /opt/stratalog/bin/python -c "import stratalog.kafka.fetch as hot; assert hot.__file__.endswith('.so')" \
 && /opt/stratalog/bin/python -c "import kopf; from kubernetes.aio.client import ApiClient, Configuration; from kubernetes.aio.config import load_kube_config; import stratalog_cli.entry"

FROM python:3.11-slim

LABEL org.opencontainers.image.title="Stratalog" \
      org.opencontainers.image.description="Tiered message storage for Kubernetes that speaks the Kafka protocol" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/stratalog /opt/stratalog
# A new volume at this place takes its owner over.
RUN install -d -o 10001 -g 10001 -m 0750 /data
ENV PATH=/opt/stratalog/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
ENTRYPOINT ["stratalog"]
