"""Runs LocalStack, in LocalStack's own environment, on the loopback interface only.

Started as a script with `python -I`, so that this checkout is not on its path: the distribution
has a package named `localstack`, as has this project.
"""

import functools
import importlib
import os
import runpy
import sys
import threading
from typing import Any


def _bind_to_loopback_only() -> None:
    # GATEWAY_LISTEN names an address, but LocalStack 4.13 gives Twisted only the port.
    endpoints: Any = importlib.import_module("twisted.internet.endpoints")
    endpoints.TCP4ServerEndpoint = functools.partial(
        endpoints.TCP4ServerEndpoint, interface="127.0.0.1"
    )


def _end_with_parent() -> None:
    # The other end of our standard input is closed when the process that started us ends,
    # however it ends.
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    if "--end-with-parent" in sys.argv:
        threading.Thread(target=_end_with_parent, daemon=True).start()
    _bind_to_loopback_only()
    del sys.argv[1:]
    runpy.run_module("localstack.runtime.main", run_name="__main__", alter_sys=True)
