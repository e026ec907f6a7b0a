"""Holds the Prefect flows of siloflow; its first import configures Prefect's logging and settings."""

import logging
import os
import sys

SETTINGS = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    "PREFECT_LOGGING_LEVEL": "CRITICAL",  # a line for every task would cost as much as the task
    "PREFECT_INTERNAL_LOGGING_LEVEL": "CRITICAL",  # of events that a stopped server does not accept
    "PREFECT_LOGGING_TO_API_ENABLED": "true",  # for siloflow's few own logs
    "PREFECT_CLI_PROMPT": "false",
    # task runs are recorded without it; it would also store every event, 20 kB per task
    "PREFECT_SERVER_SERVICES_EVENT_PERSISTER_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_TRIGGERS_ENABLED": "false",
    # one transaction for the events of a second: one for each event takes most of the server's time. Prefect cuts the
    # interval to whole seconds, and at 0 its loop never rests
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "50",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": "1",
    "PREFECT_API_BLOCKS_REGISTER_ON_START": "false",  # no flow here has a block
    "PREFECT_CLIENT_MAX_RETRIES": "3",  # 14 s instead of 62 s until a call to a stopped server ends
    "PREFECT_RUNNER_HEARTBEAT_FREQUENCY": "30",
}
"""What a command sets. With the project's own server nothing else counts; with another one, the user's come first."""

# of a server that the user names: its database may be away for a minute, in which it responds with code 500
_ELSEWHERE = {"PREFECT_CLIENT_MAX_RETRIES": "6", "PREFECT_CLIENT_RETRY_EXTRA_CODES": "500"}  # 126 s

# loggers outside Prefect's own: two count open events at ctrl-C, the third shows a traceback if the server is gone
_QUEUES = ("EventsWorker", "APILogWorker", "websockets")


def quiet_prefect() -> None:
    """Set the variables that are not set yet, and silence Prefect's loggers; call this before Prefect is imported."""
    is_elsewhere = os.environ.get("PREFECT_API_URL") and "PREFECT_CLIENT_MAX_RETRIES" not in os.environ
    settings = SETTINGS | (_ELSEWHERE if is_elsewhere else {})
    os.environ.update({k: v for k, v in settings.items() if k not in os.environ})
    for queue in _QUEUES:
        logging.getLogger(queue).setLevel(logging.CRITICAL)


if "prefect" not in sys.modules:  # else the importer has chosen Prefect's settings
    quiet_prefect()
