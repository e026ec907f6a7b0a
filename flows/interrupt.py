"""A ctrl-C that Prefect hides.

An interrupt that comes while Prefect 3.8 starts a task ends as `ValueError: Task run is not set`, raised while the interrupt
was handled; taken for a failure, it would be lost.
"""


def interruption(error: BaseException | None) -> BaseException | None:
    """What interrupted the work, if that is behind this error: KeyboardInterrupt, a termination signal; else None."""
    while error is not None and isinstance(error, Exception):
        error = error.__cause__ or error.__context__
    return error
