"""The console: what the broker knows, as pages that a person reads in a browser."""
