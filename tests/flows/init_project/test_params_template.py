"""There is one params.yaml: the checkout's is the one that is installed."""

from pathlib import Path

from flows.init_project import create_project

CHECKOUT = Path(__file__).parents[3]


def test_the_params_of_the_checkout_are_those_that_a_new_project_starts_from():
    """Change both: cp params.yaml flows/init_project/"""
    assert (CHECKOUT / "params.yaml").read_text(encoding="utf-8") == create_project.template_text()
