"""One schema table per Kafka API, spanning all its versions."""
