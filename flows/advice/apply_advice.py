"""Writes an advised method and its settings into params.yaml."""

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flows.advice.candidates import SHARED
from flows.config.edit_params import with_overrides
from flows.config.load_config import ParamsFile, params_file_of
from flows.config.method_settings import check_names
from flows.experiment.comparison.client_gains import ALONE
from flows.experiment.comparison.search_space import as_yaml
from silos.io.atomic_io import write_bytes


def apply_advice(root: Path, advice: Mapping[str, Any]) -> list[str]:
    """Write the advice into params.yaml of this folder and return the changed lines as a diff; empty if there are none.

    The learning rate is that of all methods. `siloflow compare` then trains the advised method and the references.

    Raises:
        UserError: If the file cannot be changed, or would be invalid; it is then as before.
    """
    path = params_file_of(root)
    content = path.read_bytes().decode("utf-8")
    newline = "\r\n" if "\r\n" in content else "\n"
    text = content.replace("\r\n", "\n")
    methods = as_yaml(list(dict.fromkeys([advice["advised"], SHARED, ALONE])))
    overrides = [*advice["settings"], f"comparison.methods={methods}"]
    changed = with_overrides(text, overrides)
    diff = list(
        difflib.unified_diff(text.splitlines(), changed.splitlines(), "params.yaml", "params.yaml", "", "", 0, "")
    )
    if diff:
        check_names(ParamsFile.read(root).with_overrides(overrides).params)  # before the file changes
        write_bytes(path, changed.replace("\n", newline).encode())
    return diff
