"""Nouns of the product, stdlib only: error codes, names, the cluster image."""
