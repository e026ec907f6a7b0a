"""What is printed of methods: the list of them, and one with its options."""

from typing import Any

from flows.console.printing.literal_text import PlainConsole, text_table


def methods(answer: dict[str, Any], console: PlainConsole) -> None:
    """A row a method."""
    table = text_table("method", "what it does")
    for method in answer["methods"]:
        table.add_row(method["method"], method["summary"].partition(": ")[2])
    console.print(table)
    console.print("`siloflow methods NAME` has a method's options.")


def method(answer: dict[str, Any], console: PlainConsole) -> None:
    """What it does, and a row an option."""
    console.print(answer["summary"])
    console.print(f"model tested  {answer['model']}")
    console.print(f"page          {answer['page']}")
    console.print()
    if not answer["options"]:
        console.print("It has no options of its own.")
        return
    table = text_table("option", "default", "what it is, and what it takes")
    for option in answer["options"]:
        told = [option["meaning"]] if option["meaning"] else []  # of a page of the user's own
        for at, line in enumerate([*told, option["takes"]]):
            name, default = (option["name"], _value(option["default"])) if at == 0 else ("", "")
            table.add_row(name, default, line)
    console.print(table)
    name = answer["options"][0]["name"]
    console.print(f"Set one with --set method.{answer['method']}.{name}=VALUE, or under method: in params.yaml.")


def _value(default: Any) -> str:
    """As YAML has it."""
    if default is None or isinstance(default, bool):
        return {None: "null", True: "true", False: "false"}[default]
    if isinstance(default, list):
        return f"[{', '.join(map(_value, default))}]"
    if isinstance(default, dict):
        return f"{{{', '.join(f'{key}: {_value(value)}' for key, value in default.items())}}}"
    return f"{default:.4g}" if isinstance(default, float) else str(default)
