"""`make docs`: write the tables of docs/json.md from the types in tasks/tracking/result_types/.

Text between `<!-- types -->` and `<!-- end -->` is a section for each module of the folder. A type has its docstring and a
table of its keys, with the docstring below each field. The code is read, and not imported.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
TYPES = CHECKOUT / "tasks" / "tracking" / "result_types"
PAGE = CHECKOUT / "docs" / "json.md"
_BEGIN, _END = "<!-- types -->\n", "<!-- end -->"
_PLAIN = {"str": "text", "int": "whole number", "float": "number", "bool": "true or false", "Any": "any JSON"}
_LISTS, _OBJECTS = ("list", "Sequence"), ("dict", "Mapping")


@dataclass(frozen=True)
class Named:
    """A name of a module, where it is defined: a class, or an alias with the text below it."""

    name: str
    module: Path
    node: ast.ClassDef | ast.expr
    text: str

    @property
    def has_section(self) -> bool:
        """Return whether the page describes it: a type, also one of another folder, or an alias with a text."""
        return bool(self.text) and (self.module.parent == TYPES or _is_type(self))


@dataclass(frozen=True)
class Field:
    """A key of a type: its annotation, in the module where it stands, and what it means."""

    key: str
    annotation: ast.expr
    module: Path
    is_optional: bool
    text: str


def renewed(page: str) -> str:
    """Return the page with its tables as the types are now."""
    _check_names()
    head, _, rest = page.partition(_BEGIN)
    _, _, tail = rest.partition(_END)
    return f"{head}{_BEGIN}{''.join(map(_section, _modules()))}{_END}{tail}"


def _modules() -> list[Path]:
    return sorted(path for path in TYPES.glob("*.py") if path.name != "__init__.py")


def _check_names() -> None:
    """Raise a ValueError if two types have one name: links would lead to the first."""
    first: dict[str, str] = {}
    for module in _modules():
        for node in _tree(module).body:
            if isinstance(node, ast.ClassDef) and first.setdefault(node.name, module.name) != module.name:
                raise ValueError(f"two types named {node.name}: in {first[node.name]} and {module.name}. Rename one.")


@cache
def _tree(module: Path) -> ast.Module:
    return ast.parse(module.read_text(encoding="utf-8"))


def _text_after(body: list[ast.stmt], at: int) -> str:
    """Return the string that follows a statement, as one line; empty if there is none."""
    after = body[at + 1] if at + 1 < len(body) else None
    if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and isinstance(after.value.value, str):
        return " ".join(after.value.value.split())
    return ""


@cache
def _names(module: Path) -> dict[str, Named]:
    """Return what a module defines, in the order of its text."""
    body, found = _tree(module).body, dict[str, Named]()
    for at, node in enumerate(body):
        if isinstance(node, ast.ClassDef):
            found[node.name] = Named(node.name, module, node, " ".join((ast.get_docstring(node) or "").split()))
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = Named(node.targets[0].id, module, node.value, _text_after(body, at))
    return found


def _find(name: str, module: Path) -> Named | None:
    """Return a name as a module sees it: its own, or one that it imports from our code."""
    if name in _names(module):
        return _names(module)[name]
    for node in _tree(module).body:
        if isinstance(node, ast.ImportFrom) and any((alias.asname or alias.name) == name for alias in node.names):
            path = (node.module or "").replace(".", "/")
            file = (module.parents[node.level - 1] if node.level else CHECKOUT) / f"{path}.py"
            return _find(name, file) if file.is_file() else None
    return None


def _bases(named: Named) -> Iterator[Named]:
    assert isinstance(named.node, ast.ClassDef)
    for base in named.node.bases:
        found = _find(base.id, named.module) if isinstance(base, ast.Name) else None
        if found is not None:
            yield found


def _is_type(named: Named) -> bool:
    """Return whether this is a TypedDict."""
    if not isinstance(named.node, ast.ClassDef):
        return False
    return any(isinstance(b, ast.Name) and b.id == "TypedDict" for b in named.node.bases) or any(
        map(_is_type, _bases(named))
    )


def _fields(named: Named) -> dict[str, Field]:
    """Return a type's keys, those of its bases first."""
    assert isinstance(named.node, ast.ClassDef)
    found = {key: field for base in _bases(named) for key, field in _fields(base).items()}
    is_partial = any(keyword.arg == "total" for keyword in named.node.keywords)
    for at, node in enumerate(named.node.body):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            annotation, is_optional = node.annotation, is_partial
            if _head(annotation) == "NotRequired":
                annotation, is_optional = _parts(annotation)[0], True
            key = node.target.id
            found[key] = Field(key, annotation, named.module, is_optional, _text_after(named.node.body, at))
    return found


def _head(node: ast.expr) -> str:
    return node.value.id if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) else ""


def _parts(node: ast.expr) -> list[ast.expr]:
    assert isinstance(node, ast.Subscript)
    return node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]


def _words(node: ast.expr, module: Path) -> str:
    """Return the type in words of JSON, with links to the types and aliases that the page describes."""
    if isinstance(node, ast.Constant):
        return "null" if node.value is None else _words(ast.parse(str(node.value), mode="eval").body, module)
    if isinstance(node, ast.BinOp):
        return f"{_words(node.left, module)} or {_words(node.right, module)}"
    if isinstance(node, ast.Name):
        found = None if node.id in _PLAIN else _find(node.id, module)
        if found is None:
            return _PLAIN[node.id]
        if found.has_section:
            return f"[{found.name}](#{found.name.lower()})"
        assert not isinstance(found.node, ast.ClassDef), f"{found.name} is in no module of {TYPES.name}/"
        return _words(found.node, found.module)
    parts = _parts(node)
    if _head(node) in _LISTS:
        return f"list of {_several(parts[0], module)}"
    if _head(node) in _OBJECTS:
        return f"object of {_several(parts[1], module)}"
    if _head(node) == "tuple":
        return f"list ({', '.join(_words(part, module) for part in parts)})"
    assert _head(node) == "Literal", ast.unparse(node)
    return " or ".join(f"`{part.value}`" for part in parts if isinstance(part, ast.Constant))


def _several(node: ast.expr, module: Path) -> str:
    words = f"({_words(node, module)})" if isinstance(node, ast.BinOp) else _words(node, module)
    return f"{words}s" if words in (_PLAIN["int"], _PLAIN["float"]) else words


def _section(module: Path) -> str:
    """Return the heading of a module, then its types, the whole before its parts."""
    title = (ast.get_docstring(_tree(module)) or "").partition("\n")[0].removeprefix("Types of ").rstrip(".")
    shown = [named for named in reversed(_names(module).values()) if named.has_section and not _is_only_base(named)]
    shown += [named for named, first in _of_other_folders().items() if first == module]
    return f"\n## {title[0].upper()}{title[1:]}\n" + "".join(map(_described, shown))


@cache
def _of_other_folders() -> dict[Named, Path]:
    """Return the types of other folders that annotations contain, with the first module of ours that needs each."""
    found: dict[Named, Path] = {}

    def look(node: ast.expr, module: Path, first: Path) -> None:
        for each in ast.walk(node):
            named = _find(each.id, module) if isinstance(each, ast.Name) and each.id not in _PLAIN else None
            if named is None or named.module.parent == TYPES:
                continue
            if isinstance(named.node, ast.expr):
                look(named.node, named.module, first)
            elif named not in found:
                found[named] = first
                for field in _fields(named).values():
                    look(field.annotation, field.module, first)

    for module in _modules():
        for named in _names(module).values():
            for field in _fields(named).values() if _is_type(named) else ():
                look(field.annotation, field.module, module)
    return found


@cache
def _used() -> tuple[frozenset[str], frozenset[str]]:
    """Return the names of the types that others extend, and those of all types and aliases that annotations contain."""
    bases, used = set[str](), set[str]()
    for module in _modules():
        for named in _names(module).values():
            if _is_type(named):
                bases |= {base.name for base in _bases(named)}
                annotations = [field.annotation for field in _fields(named).values()]
            else:
                annotations = [named.node] if isinstance(named.node, ast.expr) else []
            used |= {each.id for top in annotations for each in ast.walk(top) if isinstance(each, ast.Name)}
    return frozenset(bases), frozenset(used)


def _is_only_base(named: Named) -> bool:
    bases, used = _used()
    return named.name in bases and named.name not in used


def _described(named: Named) -> str:
    lines = ["", f"### {named.name}", "", named.text]
    if isinstance(named.node, ast.ClassDef):
        lines += ["", "| key | type | meaning |", "|---|---|---|"]
        for key, field in _fields(named).items():
            cells = (f"`{key}`{', optional' * field.is_optional}", _words(field.annotation, field.module), field.text)
            lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    else:
        lines[-1] = f"{named.text} In JSON: {_words(named.node, named.module)}."
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    written = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(renewed(written), encoding="utf-8")
