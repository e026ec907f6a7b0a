"""Steps that make clients by label: each class goes to some clients more than to others."""

import numpy as np

from silos.data_params import Balanced, ClassesPerCluster, Dirichlet, Shards
from silos.dataset import ATTEMPTS, At, Rows, blocks, class_codes
from silos.partitioners.iid_partitioners import Owners, by_share, dirichlet_shares, enough_rows

_CUTS = {"paper": ((0, 1, 2, 3), (4, 5, 6), (7, 8, 9)), "code": ((0, 1, 2), (3, 4, 5), (6, 7, 8, 9))}


def dirichlet(step: Dirichlet, rows: Rows, at: At) -> Owners:
    """Each class shared among the clients by a draw from Dirichlet(alpha, ..., alpha), the same in every split.

    Drawn anew, up to ATTEMPTS times, until every client has min_rows to train on (before data.split keeps some
    of them out). Hsu, Qi and Brown, "Measuring the Effects of Non-Identical Data Distribution" (2019); per class
    as in Yurochkin et al. (2019).
    """
    _has_classes(rows, at)
    enough_rows(rows, step.clients, step.min_rows, at)
    rng = at.stream()
    train, *others = rows.parts()
    members = _by_class(rows, train)
    for _ in range(ATTEMPTS):
        owner = np.empty(len(rows.y), np.int64)
        shares = []
        for of_class in members:
            shares.append(dirichlet_shares(rng, step.alpha, step.clients))
            owner[rng.permutation(of_class)] = by_share(len(of_class), shares[-1])
        if np.bincount(owner[train], minlength=step.clients).min() >= step.min_rows:
            for part in others:
                _same_shares(owner, _by_class(rows, part), shares, rng)
            return Owners.counted(owner, step.clients)
    raise at.error(
        f"found no partition in {ATTEMPTS} draws that gives each of {step.clients} clients "
        f"min_rows = {step.min_rows} at alpha = {step.alpha:g}; raise alpha, or lower clients or min_rows."
    )


def shards(step: Shards, rows: Rows, at: At) -> Owners:
    """Rows sorted by label and cut into clients * shards_per_client shards, dealt at random.

    Shards differ by one row at most. The source's test rows are dealt class by class, in the shares in which the
    clients hold the training rows of the class. McMahan et al., "Communication-Efficient Learning of Deep
    Networks from Decentralized Data" (2017), section 3: 100 clients with two shards of 300 digits.
    """
    _has_classes(rows, at)
    train, *others = rows.parts()
    count = step.clients * step.shards_per_client
    if count > len(train):
        raise at.error(
            f"cuts {step.clients} clients * {step.shards_per_client} shards_per_client = {count} shards, and there "
            f"are {len(train)} rows to deal; lower clients or shards_per_client."
        )
    rng = at.stream()
    order = rng.permutation(train)
    order = order[np.argsort(rows.y[order], kind="stable")]
    holders = rng.permutation(np.arange(count) % step.clients)
    owner = np.empty(len(rows.y), np.int64)
    for holder, shard in zip(holders, np.array_split(order, count), strict=True):
        owner[shard] = holder
    _as_in_training(owner, rows, train, others, step.clients, rng)
    return Owners.counted(owner, step.clients)


def balanced(step: Balanced, rows: Rows, at: At) -> Owners:
    """`percent` of the rows dealt to all clients, the others to the clients of the group that owns their label.

    In a random order, the first floor(n * percent / 100) rows are dealt one by one to all clients and the others
    one by one to their group's; every split is dealt so. Clients belong to groups in contiguous blocks, which are their
    laws. Groups `paper` and `code` are the two cuts of ten digits in the text and the code of the selective-averaging paper.

    `authors_deal` keeps the order of the source. Of the first floor(n * percent / 100) rows it then deals as many as give
    every client equally many; those that are left of them shift the others, whose last are left out in their place.
    """
    _has_classes(rows, at)
    enough_rows(rows, step.clients, 1, at)
    groups = _groups(step, rows, at)
    if step.clients < len(groups):
        raise at.error(f"has {len(groups)} groups for {step.clients} clients; give each group a client.")
    rng = at.stream()
    block = np.array(blocks(step.clients, len(groups)))
    by_group = [(codes, np.flatnonzero(block == index)) for index, codes in enumerate(groups)]
    own = {"test": _digits_by_client(step, rows, at)} if step.authors_own_test else {}
    owner = np.full(len(rows.y), -1, np.int64)
    for part in rows.parts():
        order = part if step.authors_deal else rng.permutation(part)
        to_all = int(len(part) * step.percent / 100)
        dealt = to_all // step.clients * step.clients if step.authors_deal else to_all
        owner[order[:dealt]] = np.arange(dealt) % step.clients
        split = "train" if rows.split is None else str(rows.split[part[0]])
        _to_owners_of_labels(owner, order[dealt : dealt + len(part) - to_all], own.get(split, by_group), rows, at)
    laws = [f"set{index}" for index in block] if step.percent < 100 else None  # all alike where all is dealt to all
    return Owners.counted(owner, step.clients, laws, _uneven(np.bincount(block), at))


def classes_per_cluster(step: ClassesPerCluster, rows: Rows, at: At) -> Owners:
    """Clients in contiguous blocks, one a cluster; a cluster's rows are those of its classes, dealt equally.

    A class of several clusters is shared equally by them. Left out are the rows of a class of none, and of each split of
    the source what a client would have beyond `most_rows`. Experiment E1 of the conditioning papers; with `merge_labels`
    after it, its subclasses E2a.
    """
    _has_classes(rows, at)
    enough_rows(rows, step.clients, 1, at)
    clusters = [class_codes(names, rows.classes, at) for names in step.clusters]
    if step.clients < len(clusters):
        raise at.error(f"has {len(clusters)} clusters for {step.clients} clients; give each cluster a client.")
    rng = at.stream()
    block = blocks(step.clients, len(clusters))
    owner = np.full(len(rows.y), -1, np.int64)
    for part in rows.parts():
        cluster = np.full(len(rows.y), -1, np.int64)
        for code, of_class in enumerate(_by_class(rows, part)):
            seen = [index for index, codes in enumerate(clusters) if code in codes]
            if seen:
                cluster[rng.permutation(of_class)] = np.array(seen)[np.arange(len(of_class)) % len(seen)]
        for index in range(len(clusters)):
            holders = [client for client, mine in enumerate(block) if mine == index]
            dealt = np.array_split(rng.permutation(np.flatnonzero(cluster == index)), len(holders))
            for client, mine in zip(holders, dealt, strict=True):
                owner[mine[: step.most_rows]] = client
    return Owners.counted(owner, step.clients, [f"set{index}" for index in block])


def _groups(step: Balanced, rows: Rows, at: At) -> list[list[int]]:
    if (step.authors_deal or step.authors_own_test) and len(rows.classes) != 10:
        raise at.error(
            f"deals as the authors' code, which is of ten classes, and the source has {len(rows.classes)}; drop "
            "authors_deal and authors_own_test."
        )
    if not isinstance(step.groups, str):
        groups = [class_codes(names, rows.classes, at) for names in step.groups]
        for code, name in enumerate(rows.classes):
            if sum(group.count(code) for group in groups) > 1:
                raise at.error(f"names the class {name!r} twice; one group owns it.")
        return groups
    if len(rows.classes) != 10:
        raise at.error(
            f"has the groups `{step.groups}`, which are of ten classes, and the source has {len(rows.classes)}; "
            "name the classes of each group."
        )
    return [list(group) for group in _CUTS[step.groups]]


def _digits_by_client(step: Balanced, rows: Rows, at: At) -> list[tuple[list[int], np.ndarray]]:
    """Of ten digits floor(10 / clients) for each client in its turn, and the remaining ones for the last."""
    if step.clients > 10:
        raise at.error(f"has authors_own_test for {step.clients} clients, which share ten digits; lower clients.")
    if rows.split is None or not (rows.split == "test").any():
        raise at.error(
            "has authors_own_test, and there are no test rows to deal; take a source that marks some, with "
            "data.split.test_rows own, or drop it."
        )
    digits = np.arange(10)
    client = np.minimum(digits // (10 // step.clients), step.clients - 1)
    return [(digits[client == index].tolist(), np.array([index])) for index in range(step.clients)]


def _to_owners_of_labels(
    owner: np.ndarray, dealt: np.ndarray, law: list[tuple[list[int], np.ndarray]], rows: Rows, at: At
) -> None:
    """Deals rows one by one to those who own their label; `law` has classes with the clients that own them."""
    owned = np.zeros(len(dealt), bool)
    for codes, holders in law:
        mine = np.isin(rows.y[dealt], codes)
        owner[dealt[mine]] = holders[np.arange(mine.sum()) % len(holders)]
        owned |= mine
    if not owned.all():
        label = rows.classes[int(rows.y[dealt[~owned]][0])]
        raise at.error(f"has no group that owns the class {label!r}; put every class in a group.")


def _uneven(sizes: np.ndarray, at: At) -> list[str]:
    """What to say where groups have not equally many clients."""
    if sizes.min() == sizes.max():
        return []
    counts = " and ".join((", ".join(map(str, sizes[:-1])), str(sizes[-1])))
    return [f"{at.title}: its {len(sizes)} groups have {counts} clients."]


def _as_in_training(
    owner: np.ndarray,
    rows: Rows,
    train: np.ndarray,
    others: list[np.ndarray],
    clients: int,
    rng: np.random.RandomState,
) -> None:
    """Deals the other splits class by class in the shares in which clients hold training rows of the class.

    Rows of a class that nobody trains on are dealt as all training rows are.
    """
    sizes = np.bincount(owner[train], minlength=clients)
    shares = []
    for of_class in _by_class(rows, train):
        held = np.bincount(owner[of_class], minlength=clients) if len(of_class) else sizes
        shares.append(held / held.sum())
    for part in others:
        _same_shares(owner, _by_class(rows, part), shares, rng)


def _same_shares(
    owner: np.ndarray, members: list[np.ndarray], shares: list[np.ndarray], rng: np.random.RandomState
) -> None:
    for of_class, share in zip(members, shares, strict=True):
        owner[rng.permutation(of_class)] = by_share(len(of_class), share)


def _by_class(rows: Rows, part: np.ndarray) -> list[np.ndarray]:
    """The row numbers of each class in a split."""
    labels = rows.y[part]
    order = np.argsort(labels, kind="stable")
    return np.split(part[order], np.searchsorted(labels[order], np.arange(1, len(rows.classes))))


def _has_classes(rows: Rows, at: At) -> None:
    if rows.task != "classification":
        raise at.error("deals rows by their class, and the source has numbers for targets; use `equal` or `quantity`.")
