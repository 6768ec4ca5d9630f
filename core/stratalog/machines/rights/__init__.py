"""Decides what a principal may do, which name a client's certificate gives it, and what a member of the cluster may
do."""

__all__ = ("authorizer", "members", "principal_names")
