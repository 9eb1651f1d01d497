"""Two things at once."""

from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import TypeVar, cast

from localstack.interruption import Interrupted, Interruption

A = TypeVar("A")
B = TypeVar("B")


def both(
    first: Callable[[Interruption], A],
    second: Callable[[Interruption], B],
    interruption: Interruption,
) -> tuple[A, B]:
    """The results of both, run at the same time; when one fails the other is told to stop.

    Returns or raises only after both ended, so that nothing is started behind our back.
    """
    shared = Interruption(part_of=interruption)
    try:
        with ThreadPoolExecutor(2) as threads:
            one, other = threads.submit(first, shared), threads.submit(second, shared)
            ended, _ = wait(
                [cast("Future[object]", one), cast("Future[object]", other)], None, FIRST_EXCEPTION
            )
            if any(future.exception() for future in ended):
                shared.request()
    finally:
        shared.close()
    failures = [error for error in (one.exception(), other.exception()) if error]
    for failure in failures:
        if not isinstance(failure, Interrupted):
            raise failure
    return one.result(), other.result()
