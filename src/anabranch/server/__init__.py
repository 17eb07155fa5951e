"""Listeners, connections, and responses in order."""
