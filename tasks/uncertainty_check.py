"""Report how uncertain the model is about each client's rows."""

import torch
from torch import Tensor

from models.client_model import Model
from models.metrics.uncertainty import predictive, uncertainty_metrics
from models.networks.wrappers.codebook_network import code_usage
from models.training.engine import Rows, Training
from silos.client_store import ClientStore
from silos.cohort import Cohort
from silos.errors import DivergedError
from tasks.execution.load_client_data import load_stacks, load_streams
from tasks.execution.steps import step
from tasks.messages.round_messages import UncertaintyScores


@step
def uncertainty_check(
    cohort: Cohort,
    model: Model,
    training: Training,
    private: ClientStore,
    seed: int,
    round: int,
    split: str = "validation",
    passes: int = 20,
    refuse: bool = True,
    device: str = "cpu",
) -> list[UncertaintyScores]:
    """Report uncertainty scores of each client, and none of a single row.

    Nothing is trained, and running statistics are unchanged. A deep ensemble is scored over all members' passes
    together; code usage is the mean over members.

    Args:
        cohort: The clients, in stacks.
        model: The model that is checked.
        training: The local training, of which only the engine is used.
        private: Where clients keep private state.
        seed: The seed of the run, for dropout.
        round: The round of the run, for dropout.
        split: The rows that are scored.
        passes: Forward passes with dropout on; 0 makes one pass without dropout.
        refuse: Whether predictions that are not finite are an error; else scores are NaN.
        device: Where clients are computed, such as "cpu".

    Returns:
        One record per stack, with the scores of `uncertainty_metrics` and, with codewords, of `code_usage`.

    Raises:
        DivergedError: If `refuse` and a client's predictions are not finite. It names the client.
    """
    messages = []
    for stack, rows, weights, context in load_stacks(cohort, model, private, split, device):
        streams = load_streams(stack, seed, round, "uncertainty_check", device)
        values = _scores(model, weights, context, rows, streams if passes else None, passes, training)
        scores = {name: value[: len(stack.clients)].cpu() for name, value in values.items()}
        counts = rows.counts[: len(stack.clients)].cpu()
        # before the server compares: no score exceeds a limit of NaN, so a diverged client would count as certain
        if refuse:
            _check_finite(stack.clients, counts, scores["entropy"], cohort.silos.folder)
        messages.append(UncertaintyScores(stack.clients, split, counts, scores))
    return messages


def _scores(
    model: Model,
    weights: dict[str, Tensor],
    context: dict[str, Tensor],
    rows: Rows,
    streams: Tensor | None,
    passes: int,
    training: Training,
) -> dict[str, Tensor]:
    prediction = predictive(model.network, weights, context, rows.x, streams, passes, training.engine)
    scores = uncertainty_metrics(prediction, rows.y, rows.counts)
    coded = [member for member in model.network.single_networks if member.network.quantized]
    usage = [
        code_usage(member.network, member.of(weights), member.of(context), rows.x, rows.counts, training.engine)
        for member in coded
    ]
    return scores | {
        name: torch.stack([codes[name] for codes in usage]).mean(0) for name in (usage[0] if usage else ())
    }


def _check_finite(clients: tuple[str, ...], counts: Tensor, entropy: Tensor, folder: str) -> None:
    """Raise DivergedError for a diverged client, which would count as certain because no score exceeds a limit of NaN."""
    for client, rows, value in zip(clients, counts.tolist(), entropy.tolist(), strict=True):
        if rows and value != value:
            raise DivergedError(
                f"client {client} of {folder}: got predictions that are not finite, so its uncertainty is "
                "unknown, expected finite ones. Training has diverged: try a lower "
                "training.optimiser.learning_rate."
            )
