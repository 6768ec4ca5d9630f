"""What a browser shows of a node: documents without scripts or outside assets, made of text that was escaped.

`add_page_routes` says what there is.
"""

from stratalog_node.admin.pages.routes import add_page_routes

__all__ = ["add_page_routes"]
