"""What alerts and dashboards ask of topics, shards and groups: looked at when a page of metrics is made, in slices.

`NodeMeasures` is what a node registers; docs/alerts.md is for whom it is.
"""

from stratalog_node.measures.node_measures import NodeMeasures

__all__ = ["NodeMeasures"]
