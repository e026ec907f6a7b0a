"""Whether a person agrees that something is deleted: asked on a terminal, never assumed where nobody can answer."""

import sys
from collections.abc import Callable

import typer

from flows.past.leftovers import Leftover
from silos.io.free_memory import size


def consent(yes: bool, silent: bool) -> Callable[[Leftover], bool]:
    """Asks for each kind; agrees to all with `yes`, and to nothing where it is silent or no terminal is there."""
    if yes or silent or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return lambda _: yes

    def ask(one: Leftover) -> bool:
        return typer.confirm(f"{one.kind}, {size(one.size)}. Lost: {one.lost}. Delete?", default=False, err=True)

    return ask
