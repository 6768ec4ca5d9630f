"""The cluster UI: server-made pages over the whole cluster, for every HTTP port that knows its metadata.

`add_ui` adds the pages to a port. The metadata come from `ClusterViews`, in this process or over HTTP; what only nodes
know (where shards end, groups, clients, records) is asked of their admin ports. Only answers that are at most two
seconds old are kept between two requests, and no request reads more than one page of a list.
Every page works without JavaScript, has a JSON twin (`?format=json`), and keeps its state in its address. Names and
records are others' text: the templates escape all of it, and the policy that goes with each page lets the browser load
and run nothing but this port's own files.
"""

from stratalog.ui.application import add_ui
from stratalog.ui.host import ClusterViews, Process, UiHost, why_no_records

__all__ = ["ClusterViews", "Process", "UiHost", "add_ui", "why_no_records"]
