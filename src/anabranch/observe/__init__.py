"""Logs: what the broker tells the people who run it."""
