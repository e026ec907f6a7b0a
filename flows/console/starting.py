"""`starting ...` on a terminal's stderr, while what a command needs is imported and started: seconds without a word."""

from flows.console.printing.literal_text import PlainConsole

_SAID = "starting ..."


class Starting:
    """Says it once, and takes it back before anything else is said; where stderr is no terminal it says nothing."""

    def __init__(self, console: PlainConsole) -> None:
        self._console, self._there = console, False

    def say(self) -> None:
        """It stands there, without a line's end."""
        if self._console.is_terminal:
            self._console.file.write(_SAID)
            self._console.file.flush()
            self._there = True

    def over(self) -> None:
        """It is gone."""
        if self._there:
            self._console.file.write(f"\r{' ' * len(_SAID)}\r")
            self._console.file.flush()
            self._there = False
