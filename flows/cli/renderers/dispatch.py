"""Which function shows the answer of which command to a person."""

from collections.abc import Callable
from typing import Any

from flows.cli.renderers.render_data import data_diff, data_log, data_use, init, partition, show, stats
from flows.cli.renderers.render_model import cost, diagnose, export, method, methods
from flows.cli.renderers.render_runs import beside, clean, compare, results, run
from flows.console.safe_text import PlainConsole

PRINTERS: dict[str, Callable[[dict[str, Any], PlainConsole], None]] = {
    printer.__name__: printer
    for printer in (
        *(init, partition, show, stats, data_log, data_diff, data_use),
        *(run, compare),
        *(methods, method),
        *(results, beside, clean),
        *(cost, export),
        diagnose,
    )
}
"""By the names that commands give."""
