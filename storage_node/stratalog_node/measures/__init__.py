"""Measures for alerts and dashboards about topics, shards and groups, computed in slices when a page of metrics is
made.

A node registers `NodeMeasures`; docs/alerts.md describes how they are used.
"""

from stratalog_node.measures.node_measures import NodeMeasures

__all__ = ["NodeMeasures"]
