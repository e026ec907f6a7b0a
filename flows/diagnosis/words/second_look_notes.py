"""What a reader should know of a second look: what it changed, who told what, and who told nothing, and why."""

from typing import Any

from flows.diagnosis.words.wording import counted, listed


def of_the_second_look(report: dict[str, Any]) -> list[str]:
    """Nothing where none was asked for."""
    look = report["second_look"]
    if look is None:
        return []
    if look["of_groups"]:
        return ["A second look was asked for. It is at pairs of silos, and of so many silos groups are compared."]
    if not look["pairs"]:
        return ["A second look was asked for, and no pair seems to differ in both inputs and rule: no silo was asked."]
    of = f"{look['explained'] or 'none'} of {counted(look['pairs'], 'pair')}"
    return [
        f"A second look: in {of} what seemed another rule follows from the inputs, as models of both silos foresee it. What "
        "is said of a silo and all others together is as it was.",
        *_who_told(look),
    ]


def _who_told(look: dict[str, Any]) -> list[str]:
    models, foreseen, silent = look["told"]["models"], look["told"]["foreseen"], look["silent"]
    said, alone = [], [client for client in models if client not in foreseen]
    if foreseen:
        said.append(f"{listed(foreseen)} told models of their labels, and what these expect of their rows.")
    if alone:
        said.append(f"{listed(alone)} told models of labels, and nothing more.")
    if models:
        said.append(f"Silos sent {look['bytes']['up']:,} bytes for it.")
    at_first = [client for client in silent if client not in models]
    for names, what in (
        (at_first, "took no part in it"),
        (sorted(silent.keys() & set(models)), "took no further part"),
    ):
        if names:
            said.append(f"{listed(names)} {what}: {silent[names[0]]}")
    return said
