"""`stratalog pipeline export`: committed records as files, or into another Kafka."""

__all__ = ("export",)
