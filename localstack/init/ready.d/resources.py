"""LocalStack runs this inside its container once it is ready.

It gives a script no `__name__` and no path of its own, hence the path in full.
"""

import runpy

runpy.run_path("/etc/localstack/init/resources.py", run_name="__main__")
