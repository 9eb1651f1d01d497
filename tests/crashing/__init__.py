"""Processes that end themselves by SIGKILL at a named step, put together from the product's parts.

Nothing of the product is changed: what is passed to it, a database, a queue, a sender, dies at
the step and else does what the real one does.
"""
