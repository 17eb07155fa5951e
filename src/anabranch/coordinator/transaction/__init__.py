"""Transactions: producers that are known by name, and the partitions they write to as one."""
