"""What a client tells in the method of Fomichev, Kholod and Kocheshkov (section III.C): moments, ranges and class counts."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from models.shift.client_summaries.client_summary import Layout, Summaries, mixture


@dataclass(frozen=True)
class Statistics:
    """Of all clients, in one order of features and classes; NaN where a value is unknown.

    Standard deviations are divided by n − 1, whatever the feature. A discrete feature has the codes 1 to K in the order of
    the schema, and its lowest and highest are those of the schema, not of the rows.
    """

    rows: np.ndarray  # (clients,)
    class_counts: np.ndarray  # (clients, classes)
    mean: np.ndarray  # (clients, features)
    sd: np.ndarray  # (clients, features)
    lowest: np.ndarray  # (clients, features)
    highest: np.ndarray  # (clients, features)
    present: np.ndarray  # (clients, features, classes): rows of the class in which the feature is not missing
    class_mean: np.ndarray  # (clients, features, classes)
    class_sd: np.ndarray  # (clients, features, classes)
    categories: np.ndarray  # (features,): K, and 0 of a numeric feature

    @property
    def prior(self) -> np.ndarray:
        """P(Y): (clients, classes); NaN of a client without rows."""
        total = self.class_counts.sum(-1, keepdims=True)
        none = np.full(self.class_counts.shape, np.nan)
        return np.divide(self.class_counts, total, out=none, where=total > 0)

    def of(self, features: slice) -> "Statistics":
        """The same of some features."""
        named = ("mean", "sd", "lowest", "highest", "present", "class_mean", "class_sd")
        of_features = {name: getattr(self, name)[:, features] for name in named}
        return Statistics(self.rows, self.class_counts, **of_features, categories=self.categories[features])


def of_summaries(told: Summaries, layout: Layout) -> Statistics:
    """From what clients tell in a diagnosis; ranges are the agreed bounds, which are no client's own values."""
    categories = np.array([0 if values is None else len(values) for values in layout.categories])
    whole, of_class = mixture(told.moments), told.moments[..., :-1, :]
    bounds = np.where(categories > 0, 1.0, layout.low), np.where(categories > 0, categories, layout.high)
    lowest, highest = (np.broadcast_to(bound, whole.shape[:2]) for bound in bounds)
    return Statistics(
        rows=told.rows,
        class_counts=np.nan_to_num(told.labels),
        mean=whole[..., 1],
        sd=whole[..., 2],
        lowest=lowest,
        highest=highest,
        present=np.nan_to_num(of_class[..., 0]),
        class_mean=of_class[..., 1],
        class_sd=of_class[..., 2],
        categories=categories,
    )


def statistics_of(
    clients: Sequence[tuple[np.ndarray, np.ndarray]], classes: int, categories: np.ndarray | None = None
) -> Statistics:
    """From rows: x (rows, features), y (rows,) classes from 0 on, of every client.

    A value that is not finite is missing: it is left out of its feature and class. categories: (features,), K of a feature
    with the codes 1 to K and 0 of a numeric one, which all are if it is not given.
    """
    if categories is None:
        categories = np.zeros(clients[0][0].shape[1], np.int64)
    told = [_of_client(np.asarray(x, np.float64), np.asarray(y), classes) for x, y in clients]
    joined = {name: np.stack([one[name] for one in told]) for name in told[0]}
    for name, bound in (("lowest", np.ones_like(categories)), ("highest", categories)):
        joined[name] = np.where(categories > 0, bound, joined[name])
    return Statistics(**joined, categories=categories)


def _of_client(x: np.ndarray, y: np.ndarray, classes: int) -> dict[str, np.ndarray]:
    of_class = y[:, None] == np.arange(classes)
    finite = np.isfinite(x)
    by_class = finite[:, :, None] & of_class[:, None]
    mean, sd = _moments(x, finite)
    class_mean, class_sd = _moments(x[:, :, None], by_class)
    any_value = finite.any(0)
    return {
        "rows": np.asarray(len(y)),
        "class_counts": of_class.sum(0),
        "mean": mean,
        "sd": sd,
        "lowest": np.where(any_value, np.where(finite, x, np.inf).min(0, initial=np.inf), np.nan),
        "highest": np.where(any_value, np.where(finite, x, -np.inf).max(0, initial=-np.inf), np.nan),
        "present": by_class.sum(0),
        "class_mean": class_mean,
        "class_sd": class_sd,
    }


def _moments(x: np.ndarray, among: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation over the first axis of those that are among them: NaN of none, and of one."""
    held = among.sum(0)
    mean = _shared(np.where(among, x, 0.0).sum(0), held)
    apart = np.where(among, x - np.where(held > 0, mean, 0.0), 0.0)
    return mean, np.sqrt(_shared((apart**2).sum(0), held - 1))


def _shared(total: np.ndarray, among: np.ndarray) -> np.ndarray:
    return np.divide(total, among, out=np.full(total.shape, np.nan), where=among > 0)
