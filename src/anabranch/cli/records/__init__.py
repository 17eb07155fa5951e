"""`anabranch produce` and `anabranch consume`: records in and out."""
