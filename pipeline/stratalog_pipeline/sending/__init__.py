"""Records on their way to a Kafka."""
