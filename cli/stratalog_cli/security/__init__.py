"""`stratalog certs`, `users` and `acls`: certificates of a cluster's own, SCRAM users, rules (ACLs)."""

__all__ = (
    "acls",
    "certificate_folder",
    "certs",
    "passwords",
    "users",
)
