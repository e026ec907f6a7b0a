"""Silos are asked, each through its ledger; those that may not answer are silent, and the others are heard."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flows.config.diagnose_params import DiagnoseParams
from flows.methods.context import on_cohorts
from models.shift.client_summaries.gaussian_mechanism import rho
from models.shift.client_summaries.query import Query
from silos.client_store import ClientStore
from silos.cohort import Silos
from silos.errors import UserError
from tasks.diagnosis.report_summary import report_summary
from tasks.execution.task_runner import Runner
from tasks.execution.task_types import ClientStep
from tasks.messages.diagnosis_messages import NoisyCounts, Refusal, ShiftNumbers
from tasks.messages.message_policy import Message

_STACK = 16  # clients whose rows are opened together


@dataclass(frozen=True)
class Responses:
    """What was told, and why the clients that told nothing did not."""

    messages: list[ShiftNumbers | NoisyCounts]
    silent: Mapping[str, str]


def query_clients(
    runner: Runner, silos: Silos, private: ClientStore, asked: Query, params: DiagnoseParams
) -> Responses:
    """Every client; UserError where none may answer."""
    noise = params.noise
    allowed = {"budget": rho(noise.budget, noise.delta), "delta": noise.delta} if noise else {}
    heard, silent = answered(runner, report_summary, silos, private=private, question=asked, **allowed)
    messages = [m for m in heard if isinstance(m, ShiftNumbers | NoisyCounts)]
    if not messages:
        raise UserError(no_reports(silent))
    return Responses(messages, silent)


def answered(runner: Runner, task: ClientStep, silos: Silos, **options: Any) -> tuple[list[Message], Mapping[str, str]]:
    """What every client answers to a step, and why those that may not did not."""
    heard: list[Message] = [m for cohort in on_cohorts(runner, task, silos, _STACK, **options) for m in cohort]
    silent = {client: why for m in heard if isinstance(m, Refusal) for client, why in m.why.items()}
    return [m for m in heard if not isinstance(m, Refusal)], silent


def bytes_reported(answers: Sequence[Responses], look: Mapping[str, Any] | None = None) -> dict[str, int]:
    """Of all that answered to any of these questions, and the most of one; look: what a second look says of itself.

    A client's answer to a question is as large as any other's.
    """
    up = look["bytes"] if look else {"up": 0, "up_of_a_client": 0}
    of: Counter[str] = Counter()
    for message in (m for one in answers for m in one.messages):
        of.update(dict.fromkeys(message.clients, message.bytes_up // len(message.clients)))
    return {"up": of.total() + up["up"], "up_of_a_client": max(of.values(), default=0) + up["up_of_a_client"]}


def no_reports(silent: Mapping[str, str]) -> str:
    """The sentence where nobody is heard."""
    first = min(silent)
    more = f" (and {len(silent) - 1} more silos likewise)" if len(silent) > 1 else ""
    return f"no silo may answer. {silent[first][:1].upper()}{silent[first][1:]}{more}"
