"""Prefect without notices, tracking and logs on the screen: settings that must stand before it is imported."""

import logging
import os

_SETTINGS = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    "PREFECT_LOGGING_LEVEL": "CRITICAL",  # a line for every task would cost as much as the task
    "PREFECT_INTERNAL_LOGGING_LEVEL": "CRITICAL",  # of events that a server which is gone does not take
    "PREFECT_LOGGING_TO_API_ENABLED": "true",  # for the few of our own
    "PREFECT_CLI_PROMPT": "false",
    # task runs are recorded without it; it would store every event as well, 20 kB a task
    "PREFECT_SERVER_SERVICES_EVENT_PERSISTER_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_TRIGGERS_ENABLED": "false",
    "PREFECT_API_BLOCKS_REGISTER_ON_START": "false",  # no flow here has a block
    "PREFECT_CLIENT_MAX_RETRIES": "3",  # 14 s instead of 62 s until a server that is gone ends a call
    "PREFECT_RUNNER_HEARTBEAT_FREQUENCY": "30",
}

# loggers outside Prefect's own: two count what is left at ctrl-C, the third shows a traceback if the server is gone
_QUEUES = ("EventsWorker", "APILogWorker", "websockets")


def quiet_prefect() -> None:
    """Settings that must stand before Prefect is imported: no tracking, no notices, no log on the screen."""
    os.environ.update({k: v for k, v in _SETTINGS.items() if k not in os.environ})
    for queue in _QUEUES:
        logging.getLogger(queue).setLevel(logging.CRITICAL)
