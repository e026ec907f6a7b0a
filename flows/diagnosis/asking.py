"""Silos are asked, each through its ledger; those that may not answer are silent, and the others are heard."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flows.diagnosis.diagnose_params import DiagnoseParams
from flows.round import on_cohorts
from models.shift.told.noise import rho
from models.shift.told.question import Question
from silos.cohort import Silos
from silos.errors import UserError
from silos.private import PrivateStore
from tasks.diagnosis.tell_shift import tell_shift
from tasks.messages import Message, NoisyCounts, ShiftNumbers, Silence
from tasks.running.runner import Runner
from tasks.running.step import ClientStep

_STACK = 16  # clients whose rows are opened together


@dataclass(frozen=True)
class Answers:
    """What was told, and why the clients that told nothing did not."""

    messages: list[ShiftNumbers | NoisyCounts]
    silent: Mapping[str, str]

    @property
    def bytes_up(self) -> dict[str, int]:
        """Of all that answered, and of one."""
        clients = sum(len(message.clients) for message in self.messages)
        total = sum(message.bytes_up for message in self.messages)
        return {"up": total, "up_of_a_client": total // max(1, clients)}


def ask(runner: Runner, silos: Silos, private: PrivateStore, asked: Question, params: DiagnoseParams) -> Answers:
    """Every client; UserError where none may answer."""
    noise = params.noise
    allowed = {"budget": rho(noise.budget, noise.delta), "delta": noise.delta} if noise else {}
    heard, silent = answered(runner, tell_shift, silos, private=private, question=asked, **allowed)
    messages = [m for m in heard if isinstance(m, ShiftNumbers | NoisyCounts)]
    if not messages:
        raise UserError(nobody(silent))
    return Answers(messages, silent)


def answered(runner: Runner, task: ClientStep, silos: Silos, **options: Any) -> tuple[list[Message], Mapping[str, str]]:
    """What every client answers to a step, and why those that may not did not."""
    heard: list[Message] = [m for cohort in on_cohorts(runner, task, silos, _STACK, **options) for m in cohort]
    silent = {client: why for m in heard if isinstance(m, Silence) for client, why in m.why.items()}
    return [m for m in heard if not isinstance(m, Silence)], silent


def nobody(silent: Mapping[str, str]) -> str:
    """The sentence where nobody is heard."""
    first = min(silent)
    more = f" (and {len(silent) - 1} more silos likewise)" if len(silent) > 1 else ""
    return f"no silo may answer. {silent[first][:1].upper()}{silent[first][1:]}{more}"
