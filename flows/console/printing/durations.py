"""How long something takes, as a person says it."""


def duration(seconds: float) -> str:
    """Seconds up to two minutes, then minutes."""
    return f"{seconds:.0f} seconds" if seconds < 120 else f"{seconds / 60:.0f} minutes"


def short_duration(seconds: float) -> str:
    """The same in a bar: `45 s`, `12 min`, `3 h 5 min`, `2 d 4 h`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"
