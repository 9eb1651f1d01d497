"""What two processes must agree on. Nothing in here does I/O."""
