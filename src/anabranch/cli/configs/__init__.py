"""`anabranch configs`: the settings of brokers, topics and groups."""
