"""What LocalStack is given when it starts, in a container or without one."""
