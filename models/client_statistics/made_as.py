"""How a vector of statistics was made, in words: two vectors of one length may be of other kinds, or signs."""

import json
from collections.abc import Mapping, Sequence
from typing import Any


def made_as(specs: Sequence[Mapping[str, Any]]) -> str:
    """Each kind with all of its options, as `loadings components 1 sign free norm null, mean`; empty of none."""
    return ", ".join(" ".join([spec["kind"], *_options(spec)]) for spec in specs)


def _options(spec: Mapping[str, Any]) -> list[str]:
    options = {name: value for name, value in spec.items() if name != "kind"}
    return [f"{name} {value if isinstance(value, str) else json.dumps(value)}" for name, value in options.items()]
