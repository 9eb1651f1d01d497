"""Stand-ins for neighbours, each held to the real thing by a suite that runs over both."""
