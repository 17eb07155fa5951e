"""The anabranch command."""
