"""Measurements of the running processes, each beside a rival in the same run.

``python -m tests.benchmarks`` (``make bench``) writes docs/benchmarks.md, its JSON and its picture.
Load goes to loopback only, and everything that is started is stopped.
"""
