"""The records of Kafka's internal topics, declared as the messages are."""
