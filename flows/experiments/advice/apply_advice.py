"""Writes an advised method and its settings into params.yaml, and leaves comments and all other characters as they are."""

import difflib
from collections.abc import Sequence
from pathlib import Path

import yaml

from flows.core.config.load_config import ParamsFile, params_file_of
from flows.core.search_space import as_yaml
from flows.experiments.advice.candidates import SHARED
from flows.experiments.comparison.client_gains import ALONE
from flows.methods.method_settings import check_names
from silos import strict_yaml
from silos.errors import UserError
from silos.io.atomic_io import write_bytes
from tasks.tracking.result_types.advice_result import Advice


def apply_advice(root: Path, advice: Advice) -> list[str]:
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
        check_names(ParamsFile.read(root).with_overrides(overrides).params, root)  # before the file changes
        write_bytes(path, changed.replace("\n", newline).encode())
    return diff


def with_overrides(text: str, overrides: Sequence[str]) -> str:
    """Return the text with each `section.key=value` as its value; a section that is missing is added.

    Raises:
        UserError: If a value is inside a list, or if the text would then mean something else.
    """
    for override in overrides:
        key, _, value = override.partition("=")
        keys = key.split(".")
        wanted = _plain_set(strict_yaml.load(text), keys, strict_yaml.load(value))
        changed = None if wanted is None else _set(text, keys, strict_yaml.load(value))
        if changed is None or not _means(changed, wanted):
            raise UserError(f"params.yaml: {key}: got a form that cannot be changed here. Set it to {value} by hand.")
        text = changed
    return text


def _means(text: str, wanted: object) -> bool:
    """Return whether the text has this content; a changed anchor or merged section may leave no YAML."""
    try:
        return bool(strict_yaml.load(text) == wanted)
    except strict_yaml.NotYamlError:
        return False


def _set(text: str, keys: Sequence[str], value: object) -> str:
    node = yaml.compose(text, yaml.SafeLoader)
    assert node is not None, "params.yaml has sections"
    for depth, key in enumerate(keys):
        if not isinstance(node, yaml.MappingNode):  # a section without content
            return _replace(text, node, _nested(keys[depth:], value))
        inner = next((v for k, v in node.value if k.value == key), None)
        if inner is None:
            return _add(text, node, key, _nested(keys[depth + 1 :], value))
        node = inner
    return _replace(text, node, as_yaml(value))


def _nested(keys: Sequence[str], value: object) -> str:
    """Return the value below these keys, in one line."""
    for key in reversed(keys):
        value = {key: value}
    return as_yaml(value)


def _replace(text: str, node: yaml.Node, value: str) -> str:
    start, end = node.start_mark.index, _end(node)
    gap = " " if start == end and text[start - 1] != " " else ""
    return f"{text[:start]}{gap}{value}{text[end:]}"


def _add(text: str, mapping: yaml.MappingNode, key: str, value: str) -> str:
    end = _end(mapping)
    if mapping.flow_style:
        separator = ", " if mapping.value else ""
        return f"{text[: end - 1].rstrip()}{separator}{key}: {value}{text[end - 1 :]}"
    line_end = text.find("\n", end)
    line_end = len(text) if line_end < 0 else line_end
    indent = " " * mapping.value[0][0].start_mark.column
    return f"{text[:line_end]}\n{indent}{key}: {value}{text[line_end:]}"


def _end(node: yaml.Node) -> int:
    """Return where the text of a node ends; PyYAML's mark of a block is at the next token."""
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return _end(last[1] if isinstance(last, tuple) else last)
    end: int = node.end_mark.index
    return end


def _plain_set(tree: object, keys: Sequence[str], value: object) -> object:
    """Return the content with the value; None if a key is inside a list."""
    if not keys:
        return value
    if isinstance(tree, list):
        return None
    sections = tree if isinstance(tree, dict) else {}
    inner = _plain_set(sections.get(keys[0]), keys[1:], value)
    return None if inner is None and len(keys) > 1 else {**sections, keys[0]: inner}
