"""Everything for running Haulage on one machine: the embedded stack, the demo, compose files."""
