"""`stratalog certs`, `users`, `acls` and `quotas`: certificates of a cluster's own, users, rules, limits."""

__all__ = (
    "acls",
    "certificate_folder",
    "certs",
    "passwords",
    "quotas",
    "users",
)
