"""Relays due outbox entries to SQS and runs the maintenance services."""
