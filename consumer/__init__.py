"""Receives, claims, processes, settles, and only then deletes."""
