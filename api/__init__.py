"""HTTP in: the use cases behind the REST contract. Never processes an input."""
