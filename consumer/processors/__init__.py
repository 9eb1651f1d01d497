"""The processors of this tree, one file per kind, and the protocol that all follow."""
