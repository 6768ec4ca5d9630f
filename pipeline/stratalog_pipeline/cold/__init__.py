"""What a bucket holds of a cluster's topics: which ranges are committed, where they lie, and their records."""
