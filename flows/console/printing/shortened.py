"""Names where there is no room for them: they lose their middle, since both ends tell them apart."""


def shortened(name: str, room: int) -> str:
    """At most so many letters: `selective_a…-seed12`."""
    if len(name) <= room:
        return name
    end = max(room // 2 - 1, 0)
    return f"{name[: max(room - end - 1, 0)]}…{name[len(name) - end :]}"
