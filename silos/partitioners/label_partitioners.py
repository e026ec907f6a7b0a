"""Steps that make clients by label: some clients get more of a class than others."""

import numpy as np

from silos.data_params import Balanced, ClassesPerCluster, Dirichlet, Shards
from silos.dataset import ATTEMPTS, At, Rows, class_codes, contiguous_blocks
from silos.partitioners.iid_partitioners import Owners, check_enough_rows, dirichlet_shares, owners_by_share

_DIGIT_GROUPS = {"paper": ((0, 1, 2, 3), (4, 5, 6), (7, 8, 9)), "code": ((0, 1, 2), (3, 4, 5), (6, 7, 8, 9))}


def dirichlet(step: Dirichlet, rows: Rows, at: At) -> Owners:
    """Share each class among the clients by a draw from Dirichlet(alpha, ..., alpha), the same in every split.

    The draw is repeated, up to ATTEMPTS times, until every client has min_rows training rows (before data.split takes
    validation and test rows). Hsu, Qi and Brown, "Measuring the Effects of Non-Identical Data Distribution" (2019); per
    class as in Yurochkin et al. (2019).
    """
    _check_has_classes(rows, at)
    check_enough_rows(rows, step.clients, step.min_rows, at)
    rng = at.stream()
    train, *others = rows.split_indices()
    members = _by_class(rows, train)
    for _ in range(ATTEMPTS):
        owner = np.empty(len(rows.y), np.int64)
        shares = []
        for of_class in members:
            shares.append(dirichlet_shares(rng, step.alpha, step.clients))
            owner[rng.permutation(of_class)] = owners_by_share(len(of_class), shares[-1])
        if np.bincount(owner[train], minlength=step.clients).min() >= step.min_rows:
            for indices in others:
                _deal_by_share(owner, _by_class(rows, indices), shares, rng)
            return Owners.counted(owner, step.clients)
    raise at.error(
        f"min_rows: got {step.min_rows}, expected a value that {ATTEMPTS} draws can reach for each of "
        f"{step.clients} clients at alpha = {step.alpha:g}. Raise alpha, or lower clients or min_rows."
    )


def shards(step: Shards, rows: Rows, at: At) -> Owners:
    """Sort rows by label, cut them into clients * shards_per_client shards, and deal the shards at random.

    Shard sizes differ by at most one row. Test rows of the source are dealt class by class, in the clients' shares of
    the class's training rows. McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized
    Data" (2017), section 3: 100 clients with two shards of 300 digits.
    """
    _check_has_classes(rows, at)
    train, *others = rows.split_indices()
    count = step.clients * step.shards_per_client
    if count > len(train):
        raise at.error(
            f"shards_per_client: got {step.clients} clients * {step.shards_per_client} shards_per_client = "
            f"{count} shards, expected at most the {len(train)} rows to deal. Lower clients or shards_per_client."
        )
    rng = at.stream()
    order = rng.permutation(train)
    order = order[np.argsort(rows.y[order], kind="stable")]
    holders = rng.permutation(np.arange(count) % step.clients)
    owner = np.empty(len(rows.y), np.int64)
    for holder, shard in zip(holders, np.array_split(order, count), strict=True):
        owner[shard] = holder
    _deal_like_training(owner, rows, train, others, step.clients, rng)
    return Owners.counted(owner, step.clients)


def balanced(step: Balanced, rows: Rows, at: At) -> Owners:
    """Deal `percent` of the rows to all clients, and the others to the clients of the group that owns their label.

    Rows are dealt one by one in a random order, each split separately: the first floor(n * percent / 100) to all
    clients, the others to their group's clients. Groups are contiguous blocks of clients, which name the domains.
    Groups `paper` and `code` are the two partitions of ten digits in the text and the code of the selective-averaging
    paper.

    `authors_deal` keeps the order of the source. Of the first floor(n * percent / 100) rows, it deals as many as give
    every client the same number. The remaining rows shift the rows for the groups, and the last rows are left out
    instead.
    """
    _check_has_classes(rows, at)
    check_enough_rows(rows, step.clients, 1, at)
    groups = _groups(step, rows, at)
    if step.clients < len(groups):
        raise at.error(
            f"clients: got {step.clients} for {len(groups)} groups, expected at least one client a "
            "group. Raise clients, or lower groups."
        )
    rng = at.stream()
    block = np.array(contiguous_blocks(step.clients, len(groups)))
    by_group = [(codes, np.flatnonzero(block == index)) for index, codes in enumerate(groups)]
    owners_by_split = {"test": _author_test_owners(step, rows, at)} if step.authors_own_test else {}
    owner = np.full(len(rows.y), -1, np.int64)
    for indices in rows.split_indices():
        order = indices if step.authors_deal else rng.permutation(indices)
        to_all = int(len(indices) * step.percent / 100)
        dealt = to_all // step.clients * step.clients if step.authors_deal else to_all
        owner[order[:dealt]] = np.arange(dealt) % step.clients
        split = "train" if rows.split is None else str(rows.split[indices[0]])
        _deal_by_label(
            owner, order[dealt : dealt + len(indices) - to_all], owners_by_split.get(split, by_group), rows, at
        )
    # clients do not differ if all rows are dealt to all
    labels = [f"set{index}" for index in block] if step.percent < 100 else None
    return Owners.counted(owner, step.clients, labels, _uneven_group_notes(np.bincount(block), at))


def classes_per_cluster(step: ClassesPerCluster, rows: Rows, at: At) -> Owners:
    """Deal each cluster's classes equally to its clients; clusters are contiguous blocks of clients.

    A class of several clusters is shared equally by them. Rows of a class in no cluster are left out, and, in each
    split of the source, a client's rows beyond `most_rows`. Experiment E1 of the conditioning papers; with
    `merge_labels` after it, its subclasses E2a.
    """
    _check_has_classes(rows, at)
    check_enough_rows(rows, step.clients, 1, at)
    clusters = [class_codes(names, rows.classes, at) for names in step.clusters]
    if step.clients < len(clusters):
        raise at.error(
            f"clients: got {step.clients} for {len(clusters)} clusters, expected at least one client a "
            "cluster. Raise clients, or lower clusters."
        )
    rng = at.stream()
    block = contiguous_blocks(step.clients, len(clusters))
    owner = np.full(len(rows.y), -1, np.int64)
    for indices in rows.split_indices():
        cluster = np.full(len(rows.y), -1, np.int64)
        for code, of_class in enumerate(_by_class(rows, indices)):
            sharing = [index for index, codes in enumerate(clusters) if code in codes]
            if sharing:
                cluster[rng.permutation(of_class)] = np.array(sharing)[np.arange(len(of_class)) % len(sharing)]
        for index in range(len(clusters)):
            holders = [client for client, assigned in enumerate(block) if assigned == index]
            dealt = np.array_split(rng.permutation(np.flatnonzero(cluster == index)), len(holders))
            for client, assigned in zip(holders, dealt, strict=True):
                owner[assigned[: step.most_rows]] = client
    return Owners.counted(owner, step.clients, [f"set{index}" for index in block])


def _groups(step: Balanced, rows: Rows, at: At) -> list[list[int]]:
    if (step.authors_deal or step.authors_own_test) and len(rows.classes) != 10:
        raise at.error(
            f"authors_deal: got a source of {len(rows.classes)} classes, expected 10, as in the authors' code. "
            "Drop authors_deal and authors_own_test."
        )
    if not isinstance(step.groups, str):
        groups = [class_codes(names, rows.classes, at) for names in step.groups]
        for code, name in enumerate(rows.classes):
            if sum(group.count(code) for group in groups) > 1:
                raise at.error(f"groups: got the class {name!r} twice, expected it in one group. Name it once.")
        return groups
    if len(rows.classes) != 10:
        raise at.error(
            f"groups: got `{step.groups}` with a source of {len(rows.classes)} classes, expected 10 classes. List "
            "the classes of each group."
        )
    return [list(group) for group in _DIGIT_GROUPS[step.groups]]


def _author_test_owners(step: Balanced, rows: Rows, at: At) -> list[tuple[list[int], np.ndarray]]:
    """Assign floor(10 / clients) digits to each client in order, and the remaining digits to the last."""
    if step.clients > 10:
        raise at.error(
            f"authors_own_test: got {step.clients} clients, expected at most 10, one a digit. Lower clients."
        )
    if rows.split is None or not (rows.split == "test").any():
        raise at.error(
            "authors_own_test: got no test rows to deal, expected a source that marks test rows, with "
            "data.split.test_rows own. Change the source, or drop authors_own_test."
        )
    digits = np.arange(10)
    client = np.minimum(digits // (10 // step.clients), step.clients - 1)
    return [(digits[client == index].tolist(), np.array([index])) for index in range(step.clients)]


def _deal_by_label(
    owner: np.ndarray, dealt: np.ndarray, owners: list[tuple[list[int], np.ndarray]], rows: Rows, at: At
) -> None:
    """Deal rows one by one to the clients that own their label; `owners` pairs classes with their clients."""
    assigned = np.zeros(len(dealt), bool)
    for codes, holders in owners:
        matching = np.isin(rows.y[dealt], codes)
        owner[dealt[matching]] = holders[np.arange(matching.sum()) % len(holders)]
        assigned |= matching
    if not assigned.all():
        label = rows.classes[int(rows.y[dealt[~assigned]][0])]
        raise at.error(
            f"groups: got no group with the class {label!r}, expected every class in a group. Add the class to a group."
        )


def _uneven_group_notes(sizes: np.ndarray, at: At) -> list[str]:
    """Return a note if groups have different numbers of clients."""
    if sizes.min() == sizes.max():
        return []
    counts = " and ".join((", ".join(map(str, sizes[:-1])), str(sizes[-1])))
    return [f"{at.title}: its {len(sizes)} groups have {counts} clients."]


def _deal_like_training(
    owner: np.ndarray,
    rows: Rows,
    train: np.ndarray,
    others: list[np.ndarray],
    clients: int,
    rng: np.random.RandomState,
) -> None:
    """Deal the other splits class by class, in the clients' shares of the class's training rows.

    Rows of a class without training rows are dealt in the clients' shares of all training rows.
    """
    sizes = np.bincount(owner[train], minlength=clients)
    shares = []
    for of_class in _by_class(rows, train):
        counts = np.bincount(owner[of_class], minlength=clients) if len(of_class) else sizes
        shares.append(counts / counts.sum())
    for indices in others:
        _deal_by_share(owner, _by_class(rows, indices), shares, rng)


def _deal_by_share(
    owner: np.ndarray, members: list[np.ndarray], shares: list[np.ndarray], rng: np.random.RandomState
) -> None:
    for of_class, share in zip(members, shares, strict=True):
        owner[rng.permutation(of_class)] = owners_by_share(len(of_class), share)


def _by_class(rows: Rows, indices: np.ndarray) -> list[np.ndarray]:
    """Return the row indices of each class in a split."""
    labels = rows.y[indices]
    order = np.argsort(labels, kind="stable")
    return np.split(indices[order], np.searchsorted(labels[order], np.arange(1, len(rows.classes))))


def _check_has_classes(rows: Rows, at: At) -> None:
    if rows.task != "classification":
        raise at.error(
            "got a source with numeric targets, expected classes, by which this step deals rows. Use "
            "`equal` or `quantity`."
        )
