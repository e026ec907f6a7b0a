"""What runs: a verb of the command `siloflow` a file; the first import of it is the moment to keep Prefect quiet."""

import sys

from flows.servers.prefect_settings import quiet_prefect

if "prefect" not in sys.modules:  # else it has its settings already, and they are its importer's
    quiet_prefect()
