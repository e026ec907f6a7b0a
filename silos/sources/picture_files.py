"""Picture files as arrays."""

import logging
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from silos.errors import UserError
from silos.machine.free_memory import must_fit


def read_pictures(paths: Sequence[Path], size: int) -> np.ndarray:
    """Pictures squeezed to squares, in colour: (n, size, size, 3) uint8."""
    from PIL import Image

    logging.getLogger("PIL").setLevel(logging.CRITICAL)  # it would print what the sentence below says
    must_fit(
        len(paths) * size * size * 3,
        f"params.yaml: data.source.size is {size:,}, and {len(paths):,} pictures of that size in colour",
        "lower it",
    )
    x = np.empty((len(paths), size, size, 3), np.uint8)
    for at, path in enumerate(paths):
        try:
            with warnings.catch_warnings(), Image.open(path) as picture:
                warnings.simplefilter("ignore")  # of large pictures, and of odd ones that are read all the same
                x[at] = np.asarray(picture.convert("RGB").resize((size, size), Image.Resampling.BILINEAR))
        except FileNotFoundError:
            raise UserError(f"{path}: there is no such picture; put it back.") from None
        except Exception as error:  # of many types: each format has a reader of its own
            reason = " ".join(str(error).replace(repr(str(path)), "it").split())
            raise UserError(f"{path} is not a picture that can be read ({reason}); replace or delete it.") from error
    return x
