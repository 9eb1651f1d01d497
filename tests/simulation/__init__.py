"""The platform in one process, step by step: which step comes next is for Hypothesis to say.

Everything that runs is the product's own: the API's application, consumers as they are assembled,
the dispatcher's relay and services, against a real Postgres. What they are given is simulated: an
event loop whose clock stands still until it is moved, and a gate before each call to a neighbour,
at which the call waits until a step lets it go, well or ill.
"""
