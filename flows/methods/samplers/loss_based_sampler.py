"""Samples clients that improved in the last round again (Fed-Focal Loss, arXiv 2011.06283, equations 7 to 13)."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from flows.methods.context import RoundContext, TrainingSetup, uniform_by_client
from flows.methods.round_report import RoundReport
from flows.methods.samplers.client_sampler import (
    FractionSampler,
    Memory,
    sampling_keys,
    select_smallest,
    validation_rows,
)
from silos.errors import UserError
from tasks.messages.message_policy import LEAST_ROWS


@dataclass(frozen=True)
class LossBasedSampler(FractionSampler):
    """Samples up to floor(focus * K) of a round's K clients uniformly from those that improved in the last round.

    The other clients are sampled uniformly from the rest: S_{t+1} = B_t + R_t, B_t a sample of
    C_t = {i in S_t: L_i(t) < L_i(before)}. `focus` is the paper's beta; with 0 the sample is that of `Uniform`.

    L_i is client i's validation loss after its training, before averaging. `last_seen` compares it with the loss that the
    client reported when it last took part, at first with the loss of the received model. `within_round` compares it with
    the loss of the received model. An equal or non-finite loss is no improvement.
    """

    asks_validation: ClassVar[bool] = True

    focus: float = 0.8
    improvement: Literal["last_seen", "within_round"] = "last_seen"

    def draw(
        self, setup: TrainingSetup, clients: Sequence[str], count: int, round_number: int, memory: Memory
    ) -> Collection[str]:
        active = setup.silos.select(clients)  # clients that improved may have left
        improved = [c for c in memory["improved"] if c in active] if memory.get("round") == round_number - 1 else []
        max_improved = math.floor(self.focus * count + 1e-9)  # 0.58 * 50 rounds to below 29
        focus_keys = uniform_by_client(setup, improved, round_number, "focus")
        again = select_smallest(np.array([*focus_keys.values()]), [*focus_keys], max_improved)
        keys = sampling_keys(setup, clients, round_number, "draw")
        keys[[active.index(client) for client in again]] = math.inf
        return [*again, *select_smallest(keys, clients, count - len(again))]

    def update(self, memory: Memory, round: RoundContext, report: RoundReport) -> Memory:
        """Store the clients that improved in this round, and the last loss of each client that may be sampled again.

        UserError if no client has ever reported a loss.
        """
        losses = round.validation or {}
        if not losses and not memory:
            raise UserError(
                "params.yaml: clients.sampling.kind: got improving, expected uniform or by_size, since clients "
                "of this method train no model of their own in a round, and so report no validation loss. Use "
                "one of these."
            )
        pairs = {client: losses[client] for client in round.clients if client in losses}
        last = memory.get("last", {})
        improved = [c for c, (before, after) in pairs.items() if after < last.get(c, before)]
        if self.improvement == "last_seen":
            last = {**last, **{c: after for c, (_, after) in pairs.items() if math.isfinite(after)}}
            inactive = {c for c, first in self.leave.items() if first <= round.number + 1}
            last = {c: loss for c, loss in last.items() if c not in inactive} if inactive else last
        return {"round": round.number, "improved": improved, "last": last}

    def warnings(self, setup: TrainingSetup) -> Sequence[str]:
        """Warn about clients that never improve because they have too few validation rows to report a loss."""
        small = [client for client, rows in validation_rows(setup.silos).items() if rows < LEAST_ROWS]
        if not small:
            return ()
        names = ", ".join(small[:3]) + (f" and {len(small) - 3} more" if len(small) > 3 else "")
        return (
            f"{names}: fewer than {LEAST_ROWS} validation rows, so never counted as improving (clients.sampling), "
            "and sampled with the rest",
        )
