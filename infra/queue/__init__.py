"""Delivery of work: one protocol, one implementation over SQS and one over the outbox alone."""
