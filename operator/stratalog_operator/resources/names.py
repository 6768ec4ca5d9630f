"""Names that are API: group, labels, annotations, finalizers, field managers. Changing one breaks what runs.

Source: docs/operator.md sections 4 and 7.
"""

from __future__ import annotations

from typing import Final

GROUP: Final = "stratalog.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"

FIELD_MANAGER: Final = "stratalog-operator"
STATUS_FIELD_MANAGER: Final = "stratalog-operator-status"

LABEL_CLUSTER: Final = f"{GROUP}/cluster"
LABEL_POOL: Final = f"{GROUP}/pool"
LABEL_NODE_ID: Final = f"{GROUP}/node-id"
LABEL_PART: Final = f"{GROUP}/part"
"""`etcd`, `meta`, `node`, `volume` or `job`: with the cluster the selector of its pods."""
LABEL_ZONE: Final = f"{GROUP}/zone"
"""On a claim: where its node was bound to."""
LABEL_ARCHIVE_JOB: Final = f"{GROUP}/archive-job"
"""On what runs for an ArchiveJob: its name."""
LABEL_RELEASED: Final = f"{GROUP}/released"

ANNOTATION_ROTATE: Final = f"{GROUP}/rotate"
"""On a StorageUser: another word, another password."""
ANNOTATION_ROTATE_CA: Final = f"{GROUP}/rotate-ca"
"""On a StorageCluster: another word, another authority."""
ANNOTATION_ROTATED_FOR: Final = f"{GROUP}/rotated-for"
"""On the Secret of a user or an authority: the word for which what is in it was made."""
ANNOTATION_ROTATED_AT: Final = f"{GROUP}/rotated-at"
"""On the Secret of a user: when its password was generated."""
ANNOTATION_PASSWORD_OF: Final = f"{GROUP}/password-of"
"""On a Secret that a person made: the StorageUsers, separated by commas, whose password may be taken from it."""
ANNOTATION_REQUESTED_AT: Final = f"{GROUP}/requested-at"
"""On the Job of a requested run: the request."""
ANNOTATION_PAUSED: Final = f"{GROUP}/paused"
ANNOTATION_RESTART: Final = f"{GROUP}/restart"
ANNOTATION_FORCE_RETIRE: Final = f"{GROUP}/force-retire-ack"
ANNOTATION_DISK_LOST: Final = f"{GROUP}/disk-lost-ack"
ANNOTATION_RELEASE_FINALIZER: Final = f"{GROUP}/release-finalizer"
ANNOTATION_ALLOW_DELETION: Final = f"{GROUP}/allow-deletion"
ANNOTATION_WANTED_HASH: Final = f"{GROUP}/wanted-hash"
"""Of what was applied last: it is applied again only when something else is wanted."""
ANNOTATION_POD_HASH: Final = f"{GROUP}/pod-hash"
"""On a pod: of the template that it was made of."""
ANNOTATION_STORAGE_ID: Final = f"{GROUP}/storage-id"
"""On a claim: the disk that a node registered with while it used the claim."""
ANNOTATION_ETCD_MEMBER: Final = f"{GROUP}/etcd-member"
"""On a claim: the member of etcd whose log is on its volume."""
ANNOTATION_VOLUME_POLICY: Final = f"{GROUP}/volume-policy"
"""On a claim: the policy that its volume had before it was guarded."""
ANNOTATION_CLUSTER_ID: Final = f"{GROUP}/cluster-id"

FINALIZER: Final = f"{GROUP}/operator"
FINALIZER_LAST_COPY: Final = f"{GROUP}/last-copy"
"""On a claim whose volume may have the last copy of something."""
