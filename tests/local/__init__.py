"""The one-machine stack, tested with real servers and real processes."""
