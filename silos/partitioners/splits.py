"""Steps that split rows into training, validation and test, choose clients by role, and subsample classes."""

from collections import Counter
from dataclasses import replace

import numpy as np

from silos.data_params import Fresh, HoldOut, SplitParams, Subsample
from silos.dataset import SPLITS, At, Clients, DataStreams, Partition, Role, Rows, class_codes, data_stream, split_codes
from silos.errors import UserError, some
from silos.row_units import order_by_unit, whole_units


def take_common(rows: Rows, params: SplitParams, seed: int) -> tuple[Rows, Rows | None]:
    """Return the rows to deal to clients, and the common rows, if the params ask for any.

    Common test rows are those that the source marks as test, else a random fraction of all rows. Common validation rows
    are those that the source marks, else a random fraction of the rows that it does not mark as test. With
    `validation_from: start` they are the first such rows that are not common test rows. Units stay whole.
    """
    splits = [name for name in ("test", "validation") if getattr(params, f"{name}_rows") == "common"]
    if not splits:
        return rows, None
    split = np.full(len(rows.y), "train", dtype="<U10") if rows.split is None else rows.split.astype("<U10")
    rng = data_stream(seed, "split", "common rows")
    candidates = np.flatnonzero(split == "train")
    shuffled = rng.permutation(candidates) if rows.unit is None else order_by_unit(candidates, rows.unit, rng)
    taken = 0
    common = np.zeros(len(rows.y), bool)
    for name in splits:
        selected = split == name
        if not selected.any():
            # test rows are taken first, so the first rows that are left are no test rows
            in_order = name == "validation" and params.validation_from == "start"
            free = np.flatnonzero(split == "train") if in_order else shuffled[taken:]
            # half rounds up here as for own rows; round() would go to the even number
            count = int(len(candidates) * getattr(params, name) + 0.5)
            if rows.unit is not None:
                free = order_by_unit(free, rows.unit) if in_order else free
                count = whole_units(rows.unit[free], len(candidates) * getattr(params, name))
            if count == 0:
                raise UserError(
                    f"params.yaml: data.split.{name}_rows: got common without common rows, expected at least one. The "
                    f"source marks no {name} rows, and a share of {getattr(params, name):g} of its "
                    f"{len(candidates)} rows rounds to none. Raise data.split.{name}."
                )
            selected[free[:count]] = True
            split[selected] = name
            taken += count
        common |= selected
    remaining = rows.take(~common)
    if len(remaining.split_indices()[0]) == 0:
        raise UserError(
            f"params.yaml: data.split: got shares that take all {len(candidates)} rows, expected rows left for "
            "training. Lower data.split.test or validation."
        )
    return remaining, replace(rows, split=split).take(common)


def without_effect(rows: Rows, params: SplitParams) -> list[str]:
    """Return notes about params that have no effect because the source marks its rows itself."""
    if params.validation_from == "start" and rows.split is not None and (rows.split == "validation").any():
        return ["data.split.validation_from: start has no effect, since the source marks its validation rows."]
    return []


def split_rows(clients: Clients, params: SplitParams, seed: int) -> np.ndarray:
    """Assign each row to a split: (n,) uint8, indices into SPLITS.

    Splits of the source are kept; if it marks no validation rows of a client, they are drawn from the client's training
    rows. All other rows are drawn from a random stream for each client, so that changes of one client do not affect
    others. At least one training row remains. A client has no rows of a split whose rows are common. Units are drawn
    as a whole, see `_split_by_unit`.
    """
    codes = np.zeros(len(clients.y), np.uint8) if clients.split is None else clients.split.copy()
    counts = np.bincount(clients.owner * len(SPLITS) + codes, minlength=len(clients) * len(SPLITS)).reshape(
        len(clients), -1
    )
    if (counts[:, 0] == 0).any():
        first = int((counts[:, 0] == 0).argmax())
        raise UserError(
            f"client {clients.names[first]}: got no training rows in the source's own split, expected at least "
            f"one. Mark at least one of its {counts[first].sum()} rows as train, or remove the client from the "
            "source."
        )
    test = params.test if clients.split is None and params.test_rows == "own" else 0.0
    validation = params.validation if params.validation_rows == "own" else 0.0
    n_test = _draw_count(counts[:, 0], test)
    n_validation = _draw_count(counts[:, 0], validation, n_test)
    n_validation[counts[:, 1] > 0] = 0
    if clients.unit is not None:
        own = np.where(counts[:, 1] > 0, 0.0, validation)
        return _split_by_unit(clients, codes, n_test + n_validation, test, own, seed)
    # one generator that is seeded again for each client, ten times as fast as many generators
    streams = DataStreams()
    for client in np.flatnonzero(n_test + n_validation).tolist():
        span = clients.span(client, client + 1)
        stream = streams.begin(seed, "split", clients.names[client])
        order = stream.permutation(np.flatnonzero(codes[span] == 0)) + span.start
        codes[order[: n_test[client]]] = SPLITS.index("test")
        codes[order[n_test[client] : n_test[client] + n_validation[client]]] = SPLITS.index("validation")
    return codes


def _split_by_unit(
    clients: Clients, codes: np.ndarray, n_drawn: np.ndarray, test: float, validation: np.ndarray, seed: int
) -> np.ndarray:
    """Draw test and validation rows by unit: (n,) uint8; no two splits share a unit, of whatever clients.

    Units with rows at several clients are drawn together, before the others. Of these a client gets as many as its
    shares lack, to the nearest whole unit. At least one unit of a client trains, and all units of one too small for test
    rows.

    Args:
        clients: The clients with units.
        codes: The splits of the source, 0 for rows to be drawn; changed in place.
        n_drawn: (clients,) rows that would be drawn without units.
        test: The share of test rows.
        validation: (clients,) shares of validation rows, 0 if the source marks some.
        seed: The seed of random draws.

    Raises:
        UserError: If rows of a client are to be drawn, and none of its units could be left for training.
    """
    assert clients.unit is not None
    units, number = np.unique(clients.unit, return_inverse=True)
    owner, free = clients.owner, codes == 0
    at_clients = np.unique(np.stack([number[free], owner[free]]), axis=1)
    shared = np.bincount(at_clients[0], minlength=len(units)) > 1
    single = (np.bincount(at_clients[1], minlength=len(clients)) == 1) & (n_drawn > 0)
    if single.any():
        raise _too_few_units(clients, int(single.argmax()), "one unit, whose rows all stay together")
    kept = np.zeros(len(units), bool)  # at a client whose validation rows the source marks
    kept[at_clients[0, validation[at_clients[1]] == 0]] = validation.any()
    kept[at_clients[0, n_drawn[at_clients[1]] == 0]] = True  # a client too small for test rows trains on all of its own
    pool = np.flatnonzero(free & (shared & ~kept)[number])
    if len(pool) and n_drawn.any():
        order = order_by_unit(pool, number, data_stream(seed, "split", "units", "of several clients"))
        _draw_units(codes, order, number, test * len(pool), validation.max() * len(pool), 0)
    streams = DataStreams()
    for client in np.flatnonzero(n_drawn).tolist():
        span = clients.span(client, client + 1)
        rows = np.flatnonzero(free[span]) + span.start
        drawn = np.bincount(codes[rows], minlength=len(SPLITS))
        own = order_by_unit(rows[~shared[number[rows]]], number, streams.begin(seed, "split", clients.names[client]))
        trains = bool((codes[rows[shared[number[rows]]]] == 0).any())
        if not trains and not len(own):
            raise _too_few_units(clients, client, "no unit to train on, since all have test rows at other clients too")
        n_test, n_validation = (
            share * len(rows) - drawn[SPLITS.index(name)]
            for name, share in (("test", test), ("validation", validation[client]))
        )
        _draw_units(codes, own, number, n_test, n_validation, 0 if trains else 1)
    return codes


def _too_few_units(clients: Clients, client: int, fault: str) -> UserError:
    return UserError(
        f"params.yaml: data.source.unit: client {clients.names[client]} has {fault}, expected two or more, since training "
        "and test need different units. Leave this client out of the source, set the shares of data.split to 0, or name a "
        "finer unit."
    )


def _draw_units(
    codes: np.ndarray, rows: np.ndarray, unit: np.ndarray, test: float, validation: float, keep: int
) -> None:
    """Mark the first units of `rows` as test and the next as validation, and leave the last `keep` units.

    rows: indices, those of a unit consecutive; test, validation: the numbers of rows to come near to.
    """
    if not len(rows):
        return
    most = int(np.flatnonzero(np.diff(unit[rows], prepend=-1))[-1]) if keep else len(rows)
    n_test = min(whole_units(unit[rows], test), most)
    n_validation = min(whole_units(unit[rows[n_test:]], validation), most - n_test)
    codes[rows[:n_test]] = SPLITS.index("test")
    codes[rows[n_test : n_test + n_validation]] = SPLITS.index("validation")


def check_marked_units(rows: Rows) -> None:
    """Raise UserError if the source marks rows of one unit as different splits."""
    if rows.unit is None or rows.split is None:
        return
    _, number = np.unique(rows.unit, return_inverse=True)
    pairs = np.unique(np.stack([number, split_codes(rows.split)]), axis=1)
    torn = int((np.bincount(pairs[0]) > 1).sum())
    if torn:
        raise UserError(
            f"params.yaml: data.source.unit: got {torn:,} of {int(number.max()) + 1:,} units with rows in two splits of the "
            "source, expected one split for each unit. Correct the column `split`, or leave it out: then whole units are "
            "drawn."
        )


def _draw_count(rows: np.ndarray, share: float, taken: np.ndarray | int = 0) -> np.ndarray:
    """Count the rows to draw from each client after others were taken, with one row left: (clients,) int64."""
    return np.minimum(np.floor(rows * share + 0.5).astype(np.int64), rows - 1 - taken)


def hold_out(step: HoldOut, partition: Partition, at: At) -> Partition:
    """Give the clients of the named domains the role `unseen`: leave-one-domain-out, as for PACS."""
    clients = partition.clients
    domains = list(dict.fromkeys(clients.domains))
    for name in step.domains:
        if name not in domains:
            hint = f"one of {some(domains)}" if any(domains) else "one of a source with domains"
            raise at.error(f"domains: got {name!r}, expected {hint}. Correct the name.")
    held_out = set(step.domains)
    pairs = list(zip(clients.domains, clients.roles, strict=True))
    if not any(domain not in held_out and role == "federated" for domain, role in pairs):
        domain_text = f"the only domain, {domains[0]!r}" if len(domains) == 1 else "every domain that trains"
        raise at.error(f"domains: got {domain_text}, expected one left to train on. Hold out fewer.")
    roles: list[Role] = ["unseen" if domain in held_out else role for domain, role in pairs]
    return replace(partition, clients=replace(clients, roles=roles))


def fresh(step: Fresh, partition: Partition, at: At) -> Partition:
    """Give the last clients of each domain the role `fresh`; `unseen` clients stay unseen."""
    pairs = list(zip(partition.clients.domains, partition.clients.roles, strict=True))
    counts = Counter(domain for domain, role in pairs if role == "federated")
    for domain, count in counts.items():
        if count <= step.per_domain:
            subject = f" of the domain {domain!r}" if domain else ""
            raise at.error(
                f"per_domain: got {step.per_domain}, expected fewer than the {count} clients{subject}. Leave at "
                "least one to train on."
            )
    roles: list[Role] = []
    for domain, role in pairs:
        if role == "federated":
            counts[domain] -= 1
        roles.append("fresh" if role == "federated" and counts[domain] < step.per_domain else role)
    return replace(partition, clients=replace(partition.clients, roles=roles))


def subsample_source(step: Subsample, rows: Rows, split: SplitParams, at: At) -> Rows:
    """Keep max(1, round(n / ratio)) of the n training rows of each named class, at random, before rows are dealt.

    Rows that the source marks as test or validation all stay.

    Raises:
        UserError: If test rows are drawn after the deal, since they would be subsampled too.
    """
    if rows.split is None and split.test_rows == "own" and split.test > 0:
        raise at.error(
            "got this step before the clients' test rows are drawn, expected it after, since it would thin the "
            "test rows, too. Move it behind the step that makes clients, set data.split.test_rows to common, or "
            "mark rows as test in the source."
        )
    train = rows.split_indices()[0]
    keep = np.ones(len(rows.y), bool)
    keep[train] = _subsample_mask(step, rows.y[train], rows.classes, at)
    return rows.take(keep)


def subsample(step: Subsample, partition: Partition, at: At) -> Partition:
    """Keep max(1, round(n / ratio)) of the n training rows of each named class, over all clients together.

    Rows are drawn at random from all clients at once. Validation and test rows all stay.

    Raises:
        UserError: If a client would have no training rows left.
    """
    train = [np.asarray(client.split == "train") for client in partition.clients]
    labels = np.concatenate([client.y[is_train] for client, is_train in zip(partition.clients, train, strict=True)])
    ends = np.cumsum([is_train.sum() for is_train in train])
    retained_by_client = np.split(_subsample_mask(step, labels, partition.classes, at), ends[:-1])
    clients = []
    for client, is_train, retained in zip(partition.clients, train, retained_by_client, strict=True):
        if not retained.any():
            raise at.error(
                f"got no training rows left for client {client.name}, expected at least one. Raise ratio, or "
                "remove the client from the source."
            )
        keep = ~is_train
        keep[is_train] = retained
        clients.append(client.take(keep))
    left_out = partition.left_out + len(labels) - int(sum(retained.sum() for retained in retained_by_client))
    return replace(partition, clients=Clients.concatenate(clients), left_out=left_out)


def _subsample_mask(step: Subsample, labels: np.ndarray, classes: list[str], at: At) -> np.ndarray:
    """Return which of these rows stay: (rows,) bool; each class has its own random stream."""
    keep = np.ones(len(labels), bool)
    for code in class_codes(step.classes, classes, at):
        of_class = np.flatnonzero(labels == code)
        count = max(1, round(len(of_class) / step.ratio))
        keep[at.stream(classes[code]).permutation(of_class)[count:]] = False
    return keep
