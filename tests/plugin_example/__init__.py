"""A kind from outside the tree, as docs/processors.md shows it."""
