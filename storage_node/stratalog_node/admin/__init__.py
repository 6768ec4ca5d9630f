"""The server side of a node's admin API (models: `stratalog.admin_api`)."""

from stratalog_node.admin.node_admin import NodeAdmin
from stratalog_node.admin.node_views import NodeViews, NodeViewSources
from stratalog_node.admin.routes import add_admin_routes
from stratalog_node.admin.services import AdminServices

__all__ = ["AdminServices", "NodeAdmin", "NodeViewSources", "NodeViews", "add_admin_routes"]
