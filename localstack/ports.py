"""Chooses TCP ports on the loopback interface."""

import socket
from typing import Self

LOOPBACK = "127.0.0.1"


class PortTakenError(Exception):
    """A port that was asked for by number is in use."""


class Ports:
    """The ports of a stack that is coming up: until the block ends no other stack chooses them.

    A server binds its port seconds after it was chosen. Meanwhile a UDP socket of the same number
    stands for it: servers need none, two stacks cannot both have it, and it ends with us.
    """

    def __init__(self) -> None:
        self._promises: list[socket.socket] = []

    def __enter__(self) -> Self:
        """Promise nothing yet."""
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the ports to the servers that listen on them by now."""
        for promise in self._promises:
            promise.close()

    def choose(self, what: str, given: int | None, default: int) -> int:
        """The given port or an error; else the default, or the next free one after it."""
        if given is not None:
            if not self._promise(given):
                raise PortTakenError(
                    f"Port {given}, asked for {what}, is in use; name another one."
                )
            return given
        for port in range(default, default + 500):
            if self._promise(port):
                if port != default:
                    print(f"Port {default} is in use; {what} gets {port}.", flush=True)
                return port
        raise PortTakenError(f"No free port for {what} from {default} on.")

    def _promise(self, port: int) -> bool:
        promise = socket.socket(type=socket.SOCK_DGRAM)
        try:
            promise.bind((LOOPBACK, port))
        except OSError:
            promise.close()
            return False
        # Looked at last: who had the promise before us listens by now.
        if not is_free(port):
            promise.close()
            return False
        self._promises.append(promise)
        return True


def free_port() -> int:
    """A port that nothing listens on right now."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


def is_free(port: int) -> bool:
    """True when a server could listen on the port, on loopback and on all interfaces alike."""
    for address in (LOOPBACK, ""):
        with socket.socket() as probe:
            # As servers do: connections that linger after a stop do not make a port taken.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((address, port))
            except OSError:
                return False
    return True
