"""Clients that improved are called again (Fed-Focal Loss, arXiv 2011.06283, equations 7 to 13)."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from flows.methods.context import RoundContext, TrainingSetup, uniform_by_client
from flows.methods.round_report import RoundReport
from flows.methods.samplers.client_sampler import (
    FractionSampler,
    Memory,
    min_rows,
    min_rows_of,
    sampling_keys,
    validation_rows,
)
from silos.errors import UserError
from tasks.messages.message_policy import LEAST_ROWS


@dataclass(frozen=True)
class LossBasedSampler(FractionSampler):
    """Of a round's K clients up to floor(focus * K) are drawn uniformly from those that improved in the round before.

    The rest is drawn uniformly from all others: S_{t+1} = B_t + R_t, B_t from C_t = {i in S_t: L_i(t) < L_i(before)}.
    `focus` is the paper's beta; 0 draws those that `Uniform` draws.

    L_i is the loss on client i's validation rows after its training, before any averaging. It improved if that is below
    what it told when it last took part (`last_seen`; at first the loss of the model that it was given), or below that of the
    model that it was given (`within_round`). Equal, or no number, is no improvement.
    """

    asks_validation: ClassVar[bool] = True

    focus: float = 0.8
    improvement: Literal["last_seen", "within_round"] = "last_seen"

    def draw(
        self, setup: TrainingSetup, clients: Sequence[str], wanted: int, number: int, memory: Memory
    ) -> Collection[str]:
        """See Drawing."""
        there = setup.silos.select(clients)  # who improved may have left
        improved = [c for c in memory["improved"] if c in there] if memory.get("round") == number - 1 else []
        most = math.floor(self.focus * wanted + 1e-9)  # 0.58 * 50 rounds to below 29
        again = min_rows_of(uniform_by_client(setup, improved, number, "focus"), most)
        rest = sampling_keys(setup, clients, number, "draw")
        rest[[there.index(client) for client in again]] = math.inf
        return [*again, *min_rows(rest, clients, wanted - len(again))]

    def update(self, memory: Memory, round: RoundContext, report: RoundReport) -> Memory:
        """Who improved in this round, and what each client told last that may be called again: one number, and no history.

        UserError if nobody ever told anything.
        """
        told = round.validation or {}
        if not told and not memory:
            raise UserError(
                "params.yaml: clients.sampling.kind is improving, and this method's clients train nothing of their own in a "
                "round, after which they could tell their loss on validation rows; use uniform or by_size."
            )
        pairs = {client: told[client] for client in round.clients if client in told}
        last = memory.get("last", {})
        improved = [c for c, (given, after) in pairs.items() if after < last.get(c, given)]
        if self.improvement == "last_seen":
            last = {**last, **{c: after for c, (_, after) in pairs.items() if math.isfinite(after)}}
            gone = {c for c, when in self.leave.items() if when <= round.number + 1}
            last = {c: loss for c, loss in last.items() if c not in gone} if gone else last
        return {"round": round.number, "improved": improved, "last": last}

    def warnings(self, setup: TrainingSetup) -> Sequence[str]:
        """Who never improves, since it has too few rows to tell."""
        few = [client for client, rows in validation_rows(setup.silos).items() if rows < LEAST_ROWS]
        if not few:
            return ()
        some = ", ".join(few[:3]) + (f" and {len(few) - 3} more" if len(few) > 3 else "")
        return (
            f"{some}: fewer than {LEAST_ROWS} validation rows, so never counted as improved (clients.sampling), and drawn "
            "with the rest",
        )
