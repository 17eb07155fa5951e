"""Where logs and cluster metadata live."""
