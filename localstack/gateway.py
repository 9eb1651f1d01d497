"""Runs LocalStack, in LocalStack's own environment, on the loopback interface only.

Started as a script with `python -I`, so that this checkout is not on its path: the distribution
has a package named `localstack`, as has this project.
"""

import importlib
import os
import runpy
import sys
import threading
from pathlib import Path
from typing import Any


def _listen_on_loopback_or_end() -> None:
    # GATEWAY_LISTEN names an address, but LocalStack 4.13 gives Twisted only the port. Nor does it
    # look whether Twisted got it: it would say that it is ready, and live on without a listener.
    endpoints: Any = importlib.import_module("twisted.internet.endpoints")
    make = endpoints.TCP4ServerEndpoint

    def on_loopback(reactor: Any, port: int) -> Any:  # noqa: ANN401 Twisted's
        endpoint = make(reactor, port, interface="127.0.0.1")
        listen = endpoint.listen
        endpoint.listen = lambda factory: listen(factory).addErrback(_end)
        return endpoint

    endpoints.TCP4ServerEndpoint = on_loopback


def _end(failure: Any) -> None:  # noqa: ANN401 Twisted's
    print(failure.getErrorMessage(), file=sys.stderr, flush=True)
    os._exit(1)


def _keep_objects_here() -> None:
    # LocalStack 4.13 keeps the objects of everybody on this machine in one folder under /tmp,
    # which belongs to whoever came first. The current folder is that of this stack.
    provider: Any = importlib.import_module("localstack.services.s3.provider")
    provider.DEFAULT_S3_TMP_DIR = str(Path("s3").absolute())


def _end_with_parent() -> None:
    # The other end of our standard input is closed when the process that started us ends,
    # however it ends.
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    if "--end-with-parent" in sys.argv:
        threading.Thread(target=_end_with_parent, daemon=True).start()
    _listen_on_loopback_or_end()
    _keep_objects_here()
    del sys.argv[1:]
    runpy.run_module("localstack.runtime.main", run_name="__main__", alter_sys=True)
