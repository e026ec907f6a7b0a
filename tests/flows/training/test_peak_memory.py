"""Memory is measured: as much as arrays must take, and not much more."""

import pytest

from flows.training.peak_memory import Measured, peak_bytes
from models.networks.cnn import CNN
from models.prng import server_stream
from models.training.engine import Training
from models.training.objectives import CrossEntropy
from models.training.optimizers import Adam

WIDE = CNN((28, 28), (32,), (), 10, kernel=3, padding=True)
LAYER = 32 * 28 * 28 * 4  # bytes of a row in its largest layer
ROWS = (1, 100, 1000)
ENDLESS = 10**10


@pytest.fixture
def measure():
    def peaks(does, rows=ROWS, seconds=100.0, limit=2**32):
        shapes = {name: tuple(w.shape) for name, w in WIDE.init(server_stream(0, 0, "init")).items()}
        training = Training(CrossEntropy(), Adam(0.1), 5, 3)
        return peak_bytes(Measured(does, WIDE, shapes, {}, training, (28, 28), rows), seconds, limit)

    return peaks


@pytest.mark.slow
@pytest.mark.parametrize(("does", "most"), [("evaluation", 2.5), ("training", 5.0)])
def test_a_thousand_rows_at_once_take_their_largest_layer_and_not_many_of_it(measure, does, most):
    one, hundred, thousand = measure(does)
    assert 0 <= one <= hundred <= thousand
    assert 1000 * LAYER < thousand - one < most * 1000 * LAYER


@pytest.mark.slow
def test_what_does_not_fit_is_not_measured_and_what_went_before_is(measure):
    fits, thousand, never = measure("evaluation", (1, 1000, ENDLESS))
    assert None not in (fits, thousand)
    assert never is None
    fits, ten_thousand = measure("evaluation", (1, 10_000), limit=8000 * LAYER)
    assert fits is not None
    assert ten_thousand is None


def test_nobody_waits_longer_than_asked(measure):
    assert measure("training", seconds=0.01) == [None] * len(ROWS)
