"""Methods are found by name; a user's own page joins without a fork."""

import pytest

from flows.method import Method, describe, find, names
from silos.errors import UserError

PAGE = '''"""Half way: FedAvg that goes half of the way to the mean."""

from flows.methods import fedavg


class HalfWay(fedavg.FedAvg):
    """`step` is the share of the way."""

    step: float = 0.5

    def one_round(self, state, round):
        """FedAvg's round, and part of the way."""
        new, report = super().one_round(state, round)
        old, mean = state.tensors["weights"], new.tensors["weights"]
        return new.with_tensors(weights={n: w + self.step * (mean[n] - w) for n, w in old.items()}), report
'''


@pytest.mark.parametrize("name", names())
def test_every_page_is_one_method_with_words_and_options_that_have_defaults(name):
    cls = find(name)
    assert issubclass(cls, Method)
    about = describe(name)
    assert about["method"] == name
    assert about["model"] in ("global", "personal")
    title, _, what = about["summary"].partition(": ")
    assert title
    assert len(what) > 20
    assert cls().model_dump() == about["options"]


def test_the_four_first_methods_are_there():
    assert {"fedavg", "fedprox", "local_only", "pooled"} <= set(names())


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(UserError, match=r"no method 'fedvag'; did you mean fedavg\?"):
        find("fedvag")
    with pytest.raises(UserError, match="there are cfl, cluster_oracle, conditional, distrans, ditto, fedavg"):
        find("zzz")


def test_a_users_own_page_joins_and_runs(tmp_path, make_problem, play):
    (tmp_path / "half_way.py").write_text(PAGE)
    extra = {"half_way": "half_way.py"}
    assert "half_way" in names(extra)
    page = find("half_way", extra, tmp_path)(step=0.25)
    assert describe("half_way", extra, tmp_path)["options"] == {"step": 0.5}
    problem = make_problem({"a": 6, "b": 9})
    own, fedavg = (play(p, problem, [1]).state.tensors["weights"] for p in (page, find("fedavg")()))
    start = page.init(problem).tensors["weights"]
    for name in start:
        assert (own[name] - (start[name] + 0.25 * (fedavg[name] - start[name]))).abs().max() < 1e-7


def test_a_page_that_is_not_there_or_holds_no_method_is_told(tmp_path):
    with pytest.raises(UserError, match=r"extra_methods\.mine names .*mine\.py, which is not there"):
        find("mine", {"mine": "mine.py"}, tmp_path)
    (tmp_path / "empty.py").write_text("x = 1\n")
    with pytest.raises(UserError, match="must define one class that extends Method, and has 0"):
        find("empty", {"empty": "empty.py"}, tmp_path)
