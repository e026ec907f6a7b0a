"""What the sets read through torchvision share: the download, what is said of its failure, and taking some rows only."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from silos.dataset import Rows
from silos.errors import UserError
from silos.partitioners.data_rng import data_stream
from silos.sources.source_params import Downloaded, RowLimits


def fetch(
    source: Downloaded, root: Path, missing: Sequence[Path], download: Callable[[], object], accepted: str
) -> None:
    """Downloads what is missing, if that is allowed; else a UserError that says which files to put where.

    `accepted` says in which other forms the files may lie there.
    """
    if not missing:
        return
    place = root / source.download_dir
    lacking = ", ".join(path.relative_to(place).as_posix() for path in missing)
    why = "data.source.download is false"
    if source.download:
        try:
            download()
        except Exception as error:  # torchvision raises whatever urllib, zipfile or tarfile do
            why = f"the download failed: {_first_line(error)}"
        if all(path.exists() for path in missing):
            return
    raise UserError(f"{source.kind} is not in {place} ({why}). Put there {lacking}; {accepted}.")


def together(
    parts: dict[str, tuple[np.ndarray, np.ndarray]], classes: Sequence[str], limits: RowLimits, seed: int
) -> Rows:
    """The source's training and test rows as one table, with `limits` applied."""
    chosen = choose({split: len(y) for split, (_, y) in parts.items()}, limits, seed)
    return joined({split: (x[chosen[split]], y[chosen[split]]) for split, (x, y) in parts.items()}, classes)


def choose(counts: dict[str, int], limits: RowLimits, seed: int) -> dict[str, np.ndarray]:
    """The row numbers taken of each split, drawn at random without repeats and in the source's order."""
    chosen = {}
    for split, count in counts.items():
        wanted = getattr(limits, split)
        if wanted is None:
            wanted = count
        if wanted > count:
            raise UserError(
                f"params.yaml: data.source.rows.{split} is {wanted}, and the source has {count} {split} rows; lower it."
            )
        order = data_stream(seed, "source", "rows", split).permutation(count)
        chosen[split] = np.sort(order[:wanted])
    return chosen


def joined(parts: dict[str, tuple[np.ndarray, np.ndarray]], classes: Sequence[str]) -> Rows:
    """Training and test rows as one table; with no test rows, the source has no split of its own."""
    split = np.concatenate([np.full(len(y), name) for name, (_, y) in parts.items()])
    return Rows(
        x=np.ascontiguousarray(np.concatenate([x for x, _ in parts.values()])),
        y=np.concatenate([y for _, y in parts.values()]).astype(np.int64),
        classes=list(classes),
        split=split if (split != "train").any() else None,
    )


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(":.") if lines else type(error).__name__
