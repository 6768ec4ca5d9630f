"""The kinds of group `stratalog.dev`: models for us, definitions for Kubernetes, from one source."""
