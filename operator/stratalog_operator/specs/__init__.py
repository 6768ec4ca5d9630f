"""What is wanted in Kubernetes: pure functions from the spec to each object. The same input gives the same bytes.

Pure. Source: docs/operator.md section 5.
"""
