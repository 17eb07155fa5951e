"""Coordinators decide and never do: no clock, socket, thread, random or log in here."""
