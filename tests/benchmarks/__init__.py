"""Measurements of the running processes, each beside a rival in the same run.

``python -m tests.benchmarks`` (``make bench``) writes docs/benchmarks.md and docs/benchmarks.json.
Load goes to loopback only, and everything that is started is stopped.
"""
