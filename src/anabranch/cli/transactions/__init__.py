"""`anabranch transactions`: see what transactions are doing, and end those that hang."""
