"""Picture files as arrays."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from silos.errors import UserError


def read_pictures(paths: Sequence[Path], size: int) -> np.ndarray:
    """Pictures squeezed to squares, in colour: (n, size, size, 3) uint8."""
    from PIL import Image, UnidentifiedImageError

    x = np.empty((len(paths), size, size, 3), np.uint8)
    for at, path in enumerate(paths):
        try:
            with Image.open(path) as picture:
                x[at] = np.asarray(picture.convert("RGB").resize((size, size), Image.Resampling.BILINEAR))
        except FileNotFoundError:
            raise UserError(f"{path}: there is no such picture; put it back.") from None
        except (OSError, ValueError, SyntaxError, UnidentifiedImageError, Image.DecompressionBombError) as error:
            said = " ".join(str(error).replace(repr(str(path)), "it").split())
            raise UserError(f"{path} is not a picture that can be read ({said}); replace or delete it.") from error
    return x
