"""`python -m localstack up|demo|down|reset|status|logs|sql|psql`, which make calls."""

import sys

from localstack.interruption import Interruption

if __name__ == "__main__":
    # Before anything else is loaded, so that Ctrl-C is a request from the first moment on.
    _interruption = Interruption()
    _interruption.listen()
    from infra.commands import exit_code_of
    from localstack import commands

    _exit_code = exit_code_of(lambda: commands.main(sys.argv[1:], _interruption))
    _interruption.ignore()
    sys.exit(_exit_code)
