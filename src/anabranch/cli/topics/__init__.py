"""`anabranch topics`: commands on topics and their settings."""
