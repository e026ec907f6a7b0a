"""A callback: writes a line for every round into a file of the run's folder."""

from typing import Annotated, Any

from pydantic import Field

from flows.plugins import register_callback


@register_callback("round_log")
class RoundLog:
    """`every` says of how many rounds one is written."""

    def __init__(self, every: Annotated[int, Field(ge=1)] = 1) -> None:
        self.every = every
        self.lines: list[str] = []

    def after_round(self, record: dict[str, Any]) -> None:
        """Called with the round's record."""
        if record["round"] % self.every == 0:
            self.lines.append(f"round {record['round']}: {record['metrics']}")
