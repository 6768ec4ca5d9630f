"""The stand-in for the meta service: the product's shard table, leases and plans behind the simulated network."""

__all__ = ("meta",)
