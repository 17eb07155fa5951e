"""Cooperative consumption: partitions shared by key range, decided without clock or I/O."""
