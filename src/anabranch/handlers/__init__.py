"""One file per Kafka API: wire messages to broker calls and back."""
