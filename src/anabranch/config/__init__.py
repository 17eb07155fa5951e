"""The table of settings under Kafka's names, and how values are loaded."""
