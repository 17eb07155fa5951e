"""`anabranch completion`: what a shell offers when Tab is pressed."""
