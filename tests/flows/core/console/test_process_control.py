"""An interrupt is found behind the error that hides it."""

import pytest

from flows.core.console.process_control import interruption


def test_an_interrupt_is_found_behind_the_error_that_hides_it():
    def hide() -> None:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            raise ValueError("Task run is not set")  # noqa: B904

    with pytest.raises(ValueError, match="not set") as found:
        hide()
    assert isinstance(interruption(found.value), KeyboardInterrupt)


def test_a_failure_is_no_interrupt():
    error = ValueError("wrong")
    error.__cause__ = KeyError("a")
    assert interruption(error) is None
    assert interruption(None) is None
    assert interruption(SystemExit(3)) is None  # of a plugin's sys.exit()
