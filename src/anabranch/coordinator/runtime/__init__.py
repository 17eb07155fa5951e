"""What all coordinators share: results, keyed timers, shards."""
