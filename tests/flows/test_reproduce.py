"""What is kept of a published table's repetition."""

import pytest

from flows.reproduce import without_places


@pytest.mark.parametrize(
    "override",
    [
        "data.source.download_dir=/srv/mnist",
        "data.source.download_dir=~/mnist",
        "data.source={kind: mnist, download_dir: /srv/mnist}",
        'data.source={kind: npz, path: "/srv/a.npz"}',
        "tracking.uri=http://tracker:5000",
        "tracking.uri=sqlite:////srv/mlflow.db",
    ],
)
def test_no_place_of_a_machine_is_written_into_the_results(override):
    (kept,) = without_places([override])
    assert kept.startswith(override.partition("=")[0] + "=")
    assert "srv" not in kept
    assert "mnist" not in kept
    assert "tracker" not in kept


def test_two_places_stay_two():
    kept = without_places(["data.source.path=/a", "data.source.path=/b", "data.source.path=/a"])
    assert kept[0] == kept[2] != kept[1]


@pytest.mark.parametrize("override", ["training.rounds=20", "data.source={kind: npz, path: arrays/my.npz}", "a.b=1/2"])
def test_other_overrides_are_kept_as_typed(override):
    assert without_places([override]) == [override]
