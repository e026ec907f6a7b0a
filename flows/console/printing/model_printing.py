"""What is printed of one model: what it costs, and the file that it is exported to."""

from typing import Any

from flows.console.printing.literal_text import PlainConsole, text_table


def cost(answer: dict[str, Any], console: PlainConsole) -> None:
    """What is counted, what is timed, and a row for each number of rows at once."""
    macs, sent, largest, latency = (answer[key] for key in ("macs", "bytes", "largest_client", "latency"))
    low, high = latency["quartiles"]
    shape = " x ".join(map(str, answer["shape"]))
    whose = f"as {answer['method']} makes it" if answer["method"] else "of params.yaml"
    of_round = f"{largest['client']}: {largest['rows']:,} rows, {largest['epochs']:,} epochs"
    numbers = {
        "network": f"{answer['network']} {whose}, rows of {shape}, outputs {answer['outputs']}",
        "parameters": f"{answer['parameters']:,} learned, {answer['buffers']:,} in buffers",
        "MACs of a row": f"{macs['forward']:,} forward, {macs['forward_and_backward']:,} forward and backward",
        "MACs of a round": f"{macs['round']:,} of the largest client ({of_round})",
        "file": f"{sent['file']:,} bytes of weights (safetensors)",
        "a round of FedAvg": f"{sent['up']:,} bytes up, {sent['down']:,} bytes down, of each client",
        "latency of a row": f"{latency['milliseconds']:.3g} ms, quartiles {low:.3g} to {high:.3g} (measured, "
        f"{latency['passes']} passes on one thread of this machine)",
    }
    for name, text in numbers.items():
        console.print(f"{name:<19}{text}")
    _memory(answer["memory"], console)


def _memory(memory: dict[str, Any], console: PlainConsole) -> None:
    """A row for each number of rows at once."""
    table = text_table("rows", "which", "largest layer", "evaluation", "at least", "training")
    for line in memory["rows"]:
        whole, least = f"{line['largest_activation']:,}", line["training_floor"]
        floor = "-" if least is None else f"{least:,}"
        table.add_row(
            f"{line['rows']:,}",
            line["what"],
            whole,
            _megabytes(line["evaluation"]),
            floor,
            _megabytes(line["training"]),
        )
    console.print()
    console.print(table)
    console.print(
        "Of so many rows at once: bytes of the largest layer; at least: parameters, gradients, optimiser "
        "and that layer in a training step."
    )
    if memory["note"]:
        console.print(f"memory {memory['note']}.")
        return
    console.print(
        "evaluation, training: measured, the most memory that a process held which did this, less what it held with the "
        f"network alone; of two times the larger, which differ by {_megabytes(memory['repeats_within'])} or less. What "
        "torch loads at its first pass is in it. siloflow itself evaluates in chunks."
    )


def _megabytes(count: int | None) -> str:
    return "-" if count is None else f"{count / 1e6:,.1f} MB"


def export(answer: dict[str, Any], console: PlainConsole) -> None:
    """What was written, what it takes and answers, and how near it is."""
    compared, shape = answer["compared"], " x ".join(map(str, answer["shape"]))
    whose = f"client {answer['client']}" if answer["client"] else "all clients"
    rows = "test rows" if compared["whose"] == "test" else "random rows"
    takes = f"rows of {shape}, {answer['dtype']}" + (", 0 to 255" if answer["dtype"] == "uint8" else "")
    gives = f"{len(answer['classes'])} probabilities a row" if answer["classes"] else "a number a row"
    console.print(f"{answer['method']} seed {answer['seed']}, round {answer['round']}: the model of {whose}")
    console.print(f"takes         {takes}; any number of them")
    console.print(f"answers       {gives}")
    console.print(
        f"opened again  differs from ours by {compared['largest_difference']:.1e} at most on {compared['rows']} {rows}"
    )
    console.print(f"file          {answer['file']} ({answer['bytes']:,} bytes)")
    if answer["personal"]:
        console.print(f"it holds what client {answer['client']} keeps to itself; leave it with that client.")
