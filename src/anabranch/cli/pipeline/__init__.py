"""`anabranch pipeline` and `anabranch demo`: applications on Spark, made and run."""
