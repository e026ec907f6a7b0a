"""`make house`: the size and shape of the code, as a table. Not a part of `make test`: no figure here refuses a change.

The floors of flows/, and circles of imports, are not counted here:
`make check` refuses them.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

CHECKOUT = Path(__file__).resolve().parents[1]
PRODUCT = ("flows", "tasks", "models", "silos")
LONG = 35  # lines of a function that needs a comment
FRAMES = """
import sys, traceback
import {module} as module
step, seen = module.{name}, []
def stop(*args, **options):
    if not seen:
        files = [f.filename for f in traceback.extract_stack()[:-1]]
        seen[:] = [f for f in files if f.startswith({root!r}) and "site-packages" not in f]
        print("frames", len(seen), len(set(seen)), flush=True)
    return step(*args, **options)
module.{name} = stop
from flows.cli import main
sys.argv = ["siloflow", *{arguments!r}]
main()
"""
COMMANDS = {
    "compare": (
        "models.training.engine",
        "train",
        ["compare", "fedavg", "--seeds", "0", "--set", "training.rounds=1", "--set", "runner.parallel_runs=1"],
    ),
    "diagnose": ("models.diagnosis.client_summaries.client_summary", "summarize", ["diagnose"]),
}


def sources(*rooms: str) -> Iterator[tuple[Path, str]]:
    """List the Python files that git knows in these rooms, with their text."""
    listed = subprocess.run(["git", "ls-files", *rooms], cwd=CHECKOUT, capture_output=True, text=True, check=True)
    for line in listed.stdout.splitlines():
        if line.endswith(".py"):
            yield Path(line), (CHECKOUT / line).read_text(encoding="utf-8")


def lines(*rooms: str) -> int:
    """Count all lines of these rooms, also docstrings, comments and empty ones."""
    return sum(len(text.splitlines()) for _, text in sources(*rooms))


def functions(*rooms: str) -> Iterator[tuple[str, ast.FunctionDef, str]]:
    """List the functions of these rooms with their place and text."""
    for path, text in sources(*rooms):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                body = "\n".join(text.splitlines()[node.lineno - 1 : node.end_lineno])
                yield f"{path}:{node.lineno} {node.name}", node, body


def members(path: str, name: str) -> tuple[int, int, int]:
    """Return the methods and fields of a class, and the imports of its file."""
    tree = ast.parse((CHECKOUT / path).read_text(encoding="utf-8"))
    (found,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
    methods = sum(isinstance(node, ast.FunctionDef) for node in found.body)
    fields = sum(isinstance(node, ast.AnnAssign) for node in found.body)
    return methods, fields, sum(isinstance(node, ast.Import | ast.ImportFrom) for node in tree.body)


def frames(module: str, name: str, arguments: list[str]) -> str:
    """Run a command in a new project, and describe the stack of its first call of a function."""
    with TemporaryDirectory() as folder:
        (Path(folder) / "params.yaml").write_bytes((CHECKOUT / "params.yaml").read_bytes())
        for command in (["git", "init", "-q"], [str(Path(sys.executable).parent / "siloflow"), "partition"]):
            subprocess.run(command, cwd=folder, capture_output=True, check=True)
        program = FRAMES.format(module=module, name=name, root=f"{CHECKOUT}/", arguments=arguments)
        ran = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=True)
    own, files = next(line.split()[1:] for line in ran.stdout.splitlines() if line.startswith("frames "))
    return f"{own} in {files} files"


def main() -> None:
    """Print the table."""
    every = [(place, node.end_lineno - node.lineno + 1, text) for place, node, text in functions(*PRODUCT)]  # type: ignore[operator]
    long = [(place, text) for place, length, text in every if length >= LONG]
    words = [node for _, text in sources(*PRODUCT) for node in ast.walk(ast.parse(text))]
    methods, _, imports = members("flows/project/project.py", "Project")
    _, fields, _ = members("flows/training/run_context.py", "RunContext")
    table = {
        "lines of flows, tasks, models, silos": f"{lines(*PRODUCT):,}",
        "lines with publications and benchmarks": f"{lines(*PRODUCT, 'publications', 'benchmarks'):,}",
        "Any in product code": f"{sum(isinstance(node, ast.Name) and node.id == 'Any' for node in words):,}",
        "lines with dict[str, Any] in flows/": f"{sum(text.count('dict[str, Any]') for _, text in sources('flows')):,}",
        "longest function": "{1} lines, {0}".format(*max(every, key=lambda each: each[1])[:2]),
        f"functions of {LONG} lines or more": f"{len(long)}, {sum('# ' not in text for _, text in long)} without a comment",
        "Project": f"{methods} methods, {imports} imports",
        "RunContext": f"{fields} fields",
        **{f"own frames, siloflow {name} to {call[1]}": frames(*call) for name, call in COMMANDS.items()},
    }
    for title, figure in table.items():
        print(f"{title:<45}{figure}")


if __name__ == "__main__":
    main()
