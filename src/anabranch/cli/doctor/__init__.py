"""`anabranch doctor`: find the usual misconfigurations, and say what to do about each."""
