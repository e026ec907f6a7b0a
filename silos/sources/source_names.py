"""What can be a name of a client, a class or a domain."""

import numpy as np

LONGEST = 1000  # letters: names become files, metrics and headings


def first_fault(names: np.ndarray) -> tuple[int, str] | None:
    """The number of the first name that cannot be one, and what is wrong with it; None if all can. names: (n,) str."""
    if not len(names):
        return None
    # text of NumPy's may hold any 32 bits, of which Python makes no letter
    letters = np.ascontiguousarray(names).view(f"{names.dtype.byteorder}u4").reshape(len(names), -1)
    halves = ((letters >= 0xD800) & (letters < 0xE000) | (letters > 0x10FFFF)).any(axis=1)
    if halves.any():
        return int(halves.argmax()), "holds half a character, which is no text; write it anew"
    lengths = np.char.str_len(names)
    if (lengths > LONGEST).any():
        at = int((lengths > LONGEST).argmax())
        return at, f"has {lengths[at]} characters, and a name has {LONGEST} at most; give it a shorter one"
    return None
