"""A callback: appends a line for every round that is on disk to a file of the run's folder."""

from typing import Annotated

from pydantic import Field

from flows.plugins import register_callback
from flows.training.callbacks.callback import Callback, PlayedRound
from flows.training.run_context import RunContext


@register_callback("round_log")
class RoundLog(Callback):
    """`every`: write the line of each n-th round."""

    def __init__(self, every: Annotated[int, Field(ge=1)] = 1) -> None:
        self.every = every

    def after_commit(self, run: RunContext, played: PlayedRound) -> None:
        """Write the line when the round is on disk."""
        number = played.record["round"]
        if number % self.every == 0:
            with (run.folder.path / "rounds.log").open("a", encoding="utf-8") as file:
                file.write(f"round {number}: {played.record['metrics']['loss/train']:.3f}\n")
