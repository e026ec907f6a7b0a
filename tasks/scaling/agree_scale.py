"""The server makes one mean and scale of what clients told: those of all their rows together."""

import numpy as np

from silos.standardizer import Scale
from tasks.messages import ScaleMoments
from tasks.running.step import server_step


@server_step
def agree_scale(told: list[ScaleMoments]) -> Scale:
    """Of each column; NaN of one that nobody tells of, and scale 1 of one that is constant.

    Clients are added in the order of their names, so that stacks do not matter (Chan, Golub and LeVeque 1979, equation 1.5,
    of any number of parts).
    """
    order = np.argsort([client for message in told for client in message.clients])
    counts, sums, squares = (
        np.concatenate([getattr(message, name).numpy() for message in told])[order].astype(np.float64)
        for name in ("counts", "sums", "squares")
    )
    with np.errstate(invalid="ignore"):
        mean = sums.sum(0) / counts.sum(0)
        apart = np.where(counts > 0, sums / counts - mean, 0.0)
        scale = np.sqrt((squares + counts * apart**2).sum(0) / counts.sum(0))
    return Scale(tuple(mean.tolist()), tuple(np.where(scale == 0, 1.0, scale).tolist()))
