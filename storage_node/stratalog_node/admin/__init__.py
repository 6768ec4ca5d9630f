"""The server side of a node's admin API and its status page (models: `stratalog.admin_api`)."""

from stratalog_node.admin.node_admin import NodeAdmin
from stratalog_node.admin.routes import add_admin_routes
from stratalog_node.admin.services import AdminServices

__all__ = ["AdminServices", "NodeAdmin", "add_admin_routes"]
