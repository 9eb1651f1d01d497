"""`python -m infra.check`: what processes would refuse of their environment, without a neighbour.

It exits with 0, or with 78 as they would, and says why on standard error.
"""

from __future__ import annotations

import os
import sys

from infra.kinds import BUILT_IN, choose_kinds, load, load_kinds
from infra.process import EXIT_MISCONFIGURED
from infra.settings import Settings
from infra.telemetry.otel_settings import OtelSettings
from schema.errors import Misconfigured


def main() -> int:
    """Read the settings, and import the kinds from outside with their processors."""
    try:
        settings = Settings.from_environment(os.environ)
        OtelSettings.from_environment(os.environ)
        kinds = load_kinds(settings.kinds, settings.kind_policies)
        for kind in choose_kinds(kinds, settings.consumer_kinds).values():
            if all(kind.name != built_in.name for built_in in BUILT_IN):
                load(kind.processor, setting=f"kind {kind.name!r}")
    except Misconfigured as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_MISCONFIGURED
    return 0


if __name__ == "__main__":
    sys.exit(main())
