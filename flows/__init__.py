"""Holds the Prefect flows of siloflow; its first import configures Prefect's logging and settings."""

import sys

from flows.servers.prefect_settings import quiet_prefect

if "prefect" not in sys.modules:  # else the importer has chosen Prefect's settings
    quiet_prefect()
