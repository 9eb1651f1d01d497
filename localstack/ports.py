"""Chooses TCP ports on the loopback interface."""

import socket

LOOPBACK = "127.0.0.1"


class PortTakenError(Exception):
    """A port that was asked for by number is in use."""


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


def choose_port(what: str, given: int | None, default: int, taken: set[int]) -> int:
    """The given port or an error; else the default, or the next free one after it.

    The choice is added to the taken ones, so that two processes are never promised one port.
    """
    if given is not None:
        if given in taken or not is_free(given):
            raise PortTakenError(f"Port {given}, asked for {what}, is in use; name another one.")
        taken.add(given)
        return given
    for port in range(default, default + 500):
        if port not in taken and is_free(port):
            if port != default:
                print(f"Port {default} is in use; {what} gets {port}.", flush=True)
            taken.add(port)
            return port
    raise PortTakenError(f"No free port for {what} from {default} on.")
