"""Which function shows the answer of which command to a person."""

from collections.abc import Callable
from typing import Any

from flows.console.printing.bench_printing import bench, diagnose_cost, overhead, population, regroup, tune
from flows.console.printing.data_printing import data_diff, data_log, data_use, init, partition, show, stats
from flows.console.printing.diagnosis_printing import diagnose
from flows.console.printing.listing_printing import listing
from flows.console.printing.literal_text import PlainConsole
from flows.console.printing.method_printing import method, methods
from flows.console.printing.model_printing import cost, export
from flows.console.printing.past_printing import beside, clean, results
from flows.console.printing.run_printing import compare, run
from flows.console.printing.table_printing import estimate, reproduce

PRINTERS: dict[str, Callable[[dict[str, Any], PlainConsole], None]] = {
    printer.__name__: printer
    for printer in (
        *(init, partition, show, stats, data_log, data_diff, data_use),
        *(run, compare),
        *(methods, method),
        *(results, beside, clean),
        *(cost, export),
        diagnose,
        *(bench, overhead, regroup, population, diagnose_cost, tune),
        *(reproduce, estimate, listing),
    )
}
"""By the names that commands give."""
