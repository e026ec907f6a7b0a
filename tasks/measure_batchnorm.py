"""Running statistics of normalising layers are measured anew: of each client's rows, or of rows that are nobody's."""

from models.client_model import Model
from models.prng import server_stream
from models.server_state import ClientStateRefs
from models.training.batchnorm_statistics import measure_batchnorm
from models.training.engine import Training
from silos.client_store import ClientStore
from silos.cohort import Cohort
from tasks.execution.load_client_data import load_rows, load_stacks, load_streams, load_weights
from tasks.execution.task_types import step
from tasks.messages.statistics_messages import CommonNorms, OwnNorms


@step
def local_batchnorm_statistics(
    cohort: Cohort,
    model: Model,
    training: Training,
    private: ClientStore,
    seed: int,
    round: int,
    device: str = "cpu",
) -> list[OwnNorms]:
    """One record a stack; each client keeps the private part of the model with the statistics of its training rows.

    ValueError for a model of which clients keep nothing.
    """
    if not isinstance(model.personal, ClientStateRefs):
        raise ValueError("local_batchnorm_statistics: clients keep nothing of this model to themselves")
    kept = []
    for stack, rows, weights, context in load_stacks(cohort, model, private, "train", device):
        streams = load_streams(stack, seed, round, "own_norms", device)
        found = {**weights, **measure_batchnorm(model.network, weights, context, rows, training, streams)}
        arrays = {name: found[name][: len(stack.clients)].cpu().numpy() for name in model.personal.start}
        kept.append(OwnNorms(stack.clients, private.save(model.personal.section, stack.clients, arrays)))
    return kept


@step
def common_batchnorm_statistics(
    cohort: Cohort,
    model: Model,
    training: Training,
    private: ClientStore,
    seed: int,
    round: int,
    device: str = "cpu",
) -> list[CommonNorms]:
    """The statistics of the common validation rows, which are the same whoever of the clients reads them.

    ValueError where validation rows are clients' own: they would leave as statistics.
    """
    if not cohort.silos.common("validation"):
        raise ValueError(
            "common_batchnorm_statistics: validation rows are clients' own, and statistics of them would leave"
        )
    told = []
    for stack in cohort.stacks:
        weights, context = load_weights(model, stack, private, device)
        rows = load_rows(cohort.silos, stack, "validation", device)
        streams = server_stream(seed, round, "common_norms").to(device).expand(stack.size)
        found = measure_batchnorm(model.network, weights, context, rows, training, streams)
        places = slice(len(stack.clients))
        told.append(CommonNorms(stack.clients, {name: t[places].cpu() for name, t in found.items()}))
    return told
