"""Coordinators' state on disk: their records as the keys and values of internal topics."""
