"""The data section of params.yaml is strict, frozen and says what is wrong with a scheme."""

import pytest
from pydantic import ValidationError

from silos.errors import UserError


def test_an_unknown_key_is_refused(params):
    with pytest.raises(ValidationError, match="seeds"):
        params(seeds=3)


def test_params_are_frozen(params):
    with pytest.raises(ValidationError):
        params().seed = 8


@pytest.mark.parametrize("name", ["../x", "", ".hidden", "a/b", "a b"])
def test_a_name_that_is_no_plain_folder_is_refused(params, name):
    with pytest.raises(ValidationError):
        params(name=name)


def test_splits_that_leave_no_training_rows_are_refused(params):
    with pytest.raises(ValidationError, match=r"Value error, got validation 0\.5 and test 0\.5, expected a sum"):
        params(split={"validation": 0.5, "test": 0.5})


@pytest.mark.parametrize(
    ("scheme", "said"),
    [
        ([], "scheme: got no step"),
        ([{"kind": "rotation", "angles": [0]}], "scheme: got a first step `rotation`"),
        (
            [{"kind": "equal", "clients": 2}, {"kind": "column", "column": "client"}],
            r"scheme\[1\]: got `column`",
        ),
    ],
)
def test_a_scheme_makes_clients_once_and_first(params, scheme, said):
    with pytest.raises(UserError, match=rf"params\.yaml: data\.{said}"):
        params(scheme=scheme)


def test_json_of_params_reads_back_as_the_same_params(params):
    built = params(scheme=[{"kind": "dirichlet", "clients": 4, "alpha": 0.3}, {"kind": "rotation", "angles": [-50]}])
    assert type(built).model_validate(built.model_dump(mode="json")) == built
