"""The one process: assembles everything, owns the loop's objects, parks and wakes requests."""
