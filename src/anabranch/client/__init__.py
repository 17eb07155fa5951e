"""A consumer that shares partitions with others by key range."""
