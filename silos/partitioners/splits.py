"""Split rows into training, validation and test, choose clients by role, and subsample classes exactly."""

from collections import Counter
from dataclasses import replace

import numpy as np

from silos.data_params import SplitParams
from silos.dataset import SPLITS, At, Clients, Partition, Role, Rows, class_codes, some
from silos.errors import UserError
from silos.partitioners.data_rng import DataStreams, data_stream
from silos.partitioners.perturbation_params import Fresh, HoldOut, Subsample


def take_common(rows: Rows, params: SplitParams, seed: int) -> tuple[Rows, Rows | None]:
    """The rows to deal to clients, and those that nobody will own, if params ask for such.

    Common test rows are those that the source marks as test, else a fraction of all rows drawn at random, and
    common validation rows likewise (then a fraction of the rows that the source does not mark as test, or with
    `validation_from: start` the first of them that are no common test rows).
    """
    splits = [name for name in ("test", "validation") if getattr(params, f"{name}_rows") == "common"]
    if not splits:
        return rows, None
    split = np.full(len(rows.y), "train", dtype="<U10") if rows.split is None else rows.split.astype("<U10")
    rng = data_stream(seed, "split", "common rows")
    candidates = np.flatnonzero(split == "train")
    order = rng.permutation(candidates)
    taken = 0
    common = np.zeros(len(rows.y), bool)
    for name in splits:
        marked = split == name
        if not marked.any():
            count = int(len(candidates) * getattr(params, name) + 0.5)
            if count == 0:
                raise UserError(
                    f"params.yaml: data.split.{name}_rows is common, but the source marks no {name} rows and a share "
                    f"of {getattr(params, name):g} of its {len(candidates)} rows is none; raise data.split.{name}."
                )
            in_order = name == "validation" and params.validation_from == "start"
            free = np.flatnonzero(split == "train") if in_order else order[taken:]
            marked[free[:count]] = True
            split[marked] = name
            taken += count
        common |= marked
    owned = rows.take(~common)
    if len(owned.parts()[0]) == 0:
        raise UserError(
            f"params.yaml: data.split takes all {len(candidates)} rows that could train for common ones; lower "
            "data.split.test or validation."
        )
    return owned, replace(rows, split=split).take(common)


def without_effect(rows: Rows, params: SplitParams) -> list[str]:
    """What the params ask for to no effect, since the source marks rows itself: sentences for a person."""
    if params.validation_from == "start" and rows.split is not None and (rows.split == "validation").any():
        return ["data.split.validation_from: start has no effect, since the source marks its validation rows itself."]
    return []


def split_rows(clients: Clients, params: SplitParams, seed: int) -> np.ndarray:
    """Which split each row is of: (n,) uint8, places in SPLITS.

    A split of the source's own is kept; where it marks no validation rows of a client, they are carved
    from its training rows. Everything else is drawn at random from a stream of the client's own, so that a
    change of one client leaves the others alone. At least one row is left for training. Of a kind whose rows
    are common, a client has none.
    """
    codes = np.zeros(len(clients.y), np.uint8) if clients.split is None else clients.split.copy()
    given = np.bincount(clients.owner * len(SPLITS) + codes, minlength=len(clients) * len(SPLITS)).reshape(
        len(clients), -1
    )
    if (given[:, 0] == 0).any():
        first = int((given[:, 0] == 0).argmax())
        raise UserError(
            f"Client {clients.names[first]} has no training rows in the source's own split; mark at least one of its "
            f"{given[first].sum()} rows as train, or leave the client out."
        )
    n_test = _count(given[:, 0], params.test if clients.split is None and params.test_rows == "own" else 0.0)
    n_validation = _count(given[:, 0], params.validation if params.validation_rows == "own" else 0.0, n_test)
    n_validation[given[:, 1] > 0] = 0
    streams = DataStreams()
    for at in np.flatnonzero(n_test + n_validation).tolist():
        mine = slice(int(clients.ends[at - 1]) if at else 0, int(clients.ends[at]))
        order = (
            streams.begin(seed, "split", clients.names[at]).permutation(np.flatnonzero(codes[mine] == 0)) + mine.start
        )
        codes[order[: n_test[at]]] = SPLITS.index("test")
        codes[order[n_test[at] : n_test[at] + n_validation[at]]] = SPLITS.index("validation")
    return codes


def _count(rows: np.ndarray, share: float, taken: np.ndarray | int = 0) -> np.ndarray:
    """How many of each client's rows are drawn, where others were taken before and one is left: (clients,) int64."""
    return np.minimum(np.floor(rows * share + 0.5).astype(np.int64), rows - 1 - taken)


def hold_out(step: HoldOut, made: Partition, at: At) -> Partition:
    """The clients of the named domains become `unseen`: leave-one-domain-out, as with PACS."""
    clients = made.clients
    domains = list(dict.fromkeys(clients.domains))
    for name in step.domains:
        if name not in domains:
            there = f"there are {some(domains)}" if any(domains) else "these clients have none"
            raise at.error(f"holds out the domain {name!r}, and there is no such domain; {there}.")
    held = set(step.domains)
    pairs = list(zip(clients.domains, clients.roles, strict=True))
    if not any(domain not in held and role == "federated" for domain, role in pairs):
        only = f"the only one, {domains[0]!r}" if len(domains) == 1 else "every one that trains"
        raise at.error(f"holds out {only}, and leaves no domain to train on; hold out fewer.")
    roles: list[Role] = ["unseen" if domain in held else role for domain, role in pairs]
    return replace(made, clients=replace(clients, roles=roles))


def fresh(step: Fresh, made: Partition, at: At) -> Partition:
    """The last clients of each domain become `fresh`; clients that are `unseen` already stay so."""
    pairs = list(zip(made.clients.domains, made.clients.roles, strict=True))
    counts = Counter(domain for domain, role in pairs if role == "federated")
    for domain, count in counts.items():
        if count <= step.per_domain:
            where = f"the domain {domain!r} has" if domain else "there are"
            raise at.error(
                f"takes {step.per_domain} clients of each domain, and {where} {count}; leave one to train on."
            )
    roles: list[Role] = []
    for domain, role in pairs:
        if role == "federated":
            counts[domain] -= 1
        roles.append("fresh" if role == "federated" and counts[domain] < step.per_domain else role)
    return replace(made, clients=replace(made.clients, roles=roles))


def subsample_source(step: Subsample, rows: Rows, split: SplitParams, at: At) -> Rows:
    """The rows to deal, with max(1, round(n / ratio)) of the n rows of each named class that may train, drawn at random.

    Rows that the source marks as test or validation all stay. UserError where test rows are drawn only after the deal:
    they would be thinned too.
    """
    if rows.split is None and split.test_rows == "own" and split.test > 0:
        raise at.error(
            "stands before the clients' test rows are drawn, which would be thinned with the others; set "
            "data.split.test_rows to common, put the step after the one that makes clients, or mark rows as test in the "
            "source."
        )
    train = rows.parts()[0]
    stays = np.ones(len(rows.y), bool)
    stays[train] = _stay(step, rows.y[train], rows.classes, at)
    return rows.take(stays)


def subsample(step: Subsample, made: Partition, at: At) -> Partition:
    """Of the n training rows of a named class that all clients have together, max(1, round(n / ratio)) stay.

    Drawn at random from all of them at once. Validation and test rows stay as they are. UserError where a client would
    have no training rows any more.
    """
    train = [np.asarray(client.split == "train") for client in made.clients]
    labels = np.concatenate([client.y[mine] for client, mine in zip(made.clients, train, strict=True)])
    ends = np.cumsum([mine.sum() for mine in train])
    parts = np.split(_stay(step, labels, made.classes, at), ends[:-1])
    clients = []
    for client, mine, part in zip(made.clients, train, parts, strict=True):
        if not part.any():
            raise at.error(
                f"leaves client {client.name} without training rows; lower ratio, or leave the client out of the source."
            )
        stays = ~mine
        stays[mine] = part
        clients.append(client.take(stays))
    left_out = made.left_out + len(labels) - int(sum(part.sum() for part in parts))
    return replace(made, clients=Clients.of(clients), left_out=left_out)


def _stay(step: Subsample, labels: np.ndarray, classes: list[str], at: At) -> np.ndarray:
    """Which of these rows stay: (rows,) bool. A class's rows are drawn from a stream of its own."""
    stay = np.ones(len(labels), bool)
    for code in class_codes(step.classes, classes, at):
        of_class = np.flatnonzero(labels == code)
        count = max(1, round(len(of_class) / step.ratio))
        stay[at.stream(classes[code]).permutation(of_class)[count:]] = False
    return stay
