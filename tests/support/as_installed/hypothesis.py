"""Stands before the library of this name for the nodes that tests start: nobody's node has it.

kio looks for it and would load all of it, a fifth of what a start costs.
"""

raise ImportError("a node as it is installed does not have hypothesis")
