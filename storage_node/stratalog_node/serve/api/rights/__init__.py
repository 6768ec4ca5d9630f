"""The handlers of the APIs of rules (ACLs) and SCRAM users, one module per API key."""

__all__ = ("acl_fields",)
