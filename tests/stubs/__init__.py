"""Stand-ins for neighbours, that do what the real ones do rarely."""
