"""Hides the library of this name from the nodes that tests start, because installed nodes do not have it.

kio would import all of it, which takes a fifth of a start.
"""

raise ImportError("a node as it is installed does not have hypothesis")
