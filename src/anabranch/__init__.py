"""Anabranch: a Kafka-compatible broker whose consumers scale past partitions."""

__version__ = "0.1.0"
