"""The operator: `kubectl apply` in, storage nodes that come and go without moving data out.

`resources` are the kinds as models, from which `crds/` is made. Contract: docs/operator.md.
"""
