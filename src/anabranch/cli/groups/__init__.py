"""`anabranch groups`: commands on consumer groups and the offsets they committed."""
