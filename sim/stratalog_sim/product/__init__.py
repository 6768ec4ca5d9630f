"""The product's own node and meta service on simulated machines: virtual time, and the system calls of a simulated
kernel.

Nothing here replaces the product's code; see docs/simulator.md.
"""

__all__ = ("play",)
