"""All access to the Kubernetes API."""
