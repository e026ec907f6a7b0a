"""The evidence of `guarded` where counts may not be sent: its hypotheses tested by moments, which say less of P(Y | X)."""

import numpy as np

from models.shift import moment_tests as test
from models.shift import tables
from models.shift.class_moments import ROWS, standard
from models.shift.guarded import Evidence, Sized, all_known, covered, found, harmonic, noise_of_labels, only, priors
from models.shift.pairs import Pairs

LEAST_ROWS = 100
"""Of a class on both sides for it to be compared within, or of all rows where no class has so many: with fewer, skewness
and kurtosis are too rough for a Wald test."""


def evidence(pairs: Pairs) -> Evidence:
    """Of moments, `class_moments` says which; the column behind the classes, of several together, counts for P(X) only."""
    told = standard(pairs.moments)
    kept: np.ndarray = np.all(told[..., :-1, ROWS] >= LEAST_ROWS, axis=-2)
    within = np.where(kept[..., None, :, None], told[..., :-1, :], 0.0)
    inner = harmonic(within[..., ROWS].sum(-1))
    rows = told[..., ROWS].sum(-1)
    of_all = rows.max(1, keepdims=True, initial=0)  # a feature tells of fewer where values are missing
    compared: np.ndarray = np.any(kept, axis=(1, 2))
    known = all_known(of_all, pairs, kept) & ((rows >= LEAST_ROWS).all(-1) | compared[:, None])
    mean, even = priors(pairs.labels, kept)
    tested = {
        "bins": Sized(only(known, test.of_values(told)), harmonic(rows)),
        "bins_in_classes": Sized(test.of_values_in_classes(within), inner),
        "classes_in_bins": Sized(test.of_classes_at_values(within), inner),
        "interaction": Sized(test.homogeneous(within), inner),
        "at_mean": Sized(test.of_values_at_prior(within, mean), inner),
        "at_even": Sized(test.of_values_at_prior(within, even), inner),
        "labels": Sized(tables.pearson(pairs.labels, noise_of_labels(pairs.noise)), harmonic(pairs.labels.sum(-1))),
    }
    return found(tested, pairs.moments.shape[1], covered(pairs, kept))
