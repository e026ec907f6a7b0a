"""What params say of the model is the network that methods are given."""

from flows.project import Project
from models.deep_ensemble import DeepEnsemble
from models.dense import MLP


def test_one_member_is_the_network_itself_and_more_are_an_ensemble(project):
    network = MLP(64, (8,), 10)
    for override, expected in (
        ([], network),
        (["model.members=1"], network),
        (["model.members=3"], DeepEnsemble(network, 3)),
    ):
        problem = Project.open(override, project, derived=True).problem(0)
        assert problem.network == expected
        assert problem.training.engine == "batched"
