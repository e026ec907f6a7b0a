"""Measure how often two clients of one law report opposite loadings: the table of docs/statistics.md."""

import numpy as np
import torch
from sklearn.datasets import load_digits

from models.statistics.spectrum import orient, spectrum
from models.statistics.statistic_base import centred, one_hot


def flips(x, y, classes, rows, component=0, pairs=200):
    """Return the mean cosine without signs, and how many of a hundred pairs flip, by rule.

    Args:
        x: Inputs (n, features) in [0, 1].
        y: Codes of the classes (n,).
        classes: Number of classes.
        rows: Rows of each client.
        component: Which principal direction is compared.
        pairs: Number of pairs of clients, each with rows of its own.
    """
    rng, cosines, flipped = np.random.default_rng(0), [], {}
    for _ in range(pairs):
        order = rng.permutation(len(x))
        two = [order[:rows], order[rows : 2 * rows]]
        z = [centred(torch.cat([torch.from_numpy(x[at]), one_hot(torch.from_numpy(y[at]), classes)], 1)) for at in two]
        v = [spectrum(of_one)[1][component] for of_one in z]
        cosines.append(abs(float(v[0] @ v[1])))
        contrast = torch.arange(classes).double() - (classes - 1) / 2
        signed = {
            rule: [orient(a, rule, b, x.shape[1]) for a, b in zip(v, z, strict=True)]
            for rule in ("ones", "largest", "data")
        }
        signed["rows"] = [a * ((b @ a).sign() * (b @ a) ** 2).sum().sign() for a, b in zip(v, z, strict=True)]
        signed["labels"] = [a * (a[x.shape[1] :] @ contrast).sign() for a in v]
        public = [torch.from_numpy(np.random.default_rng(draw).normal(size=len(v[0]))) for draw in range(10)]
        signed |= {f"random {draw}": [a * (a @ direction).sign() for a in v] for draw, direction in enumerate(public)}
        for rule, (one, other) in signed.items():
            flipped.setdefault(rule, []).append(float(one @ other) < 0)
    return np.mean(cosines), {rule: 100 * np.mean(those) for rule, those in flipped.items()}


x, y = load_digits(return_X_y=True)
print(flips(x / 16, y, 10, rows=70))
