"""Tables of docs/ are written from records, and one that is stale is seen."""

from pathlib import Path

import pytest

from publications.render.doc_tables import main, pages, renewed
from silos.errors import UserError

CHECKOUT = Path(__file__).parents[3]
TABLE = """Before.

<!-- table: fed-focal 2
{% filter bold(highest=['ours']) %}
| method | ours | published |
|---|---|---|
{% for title, cell in [('FedAvg', 'fedavg'), ('FedProx', 'fedprox')] %}
| {{ title }} | {{ figure(cell) }} | {{ published(cell) | default }} |
{% endfor %}

| text, with \\| | {{ mean('virtual') }} | as published |
{% endfilter %}
-->
stale
<!-- end -->

After.
"""
LISTED = "<!-- list: mcmahan -->\n<!-- end -->\n"
MADE = """| method | ours | published |
|---|---|---|
| FedAvg | .969 ± .0003 | .968 |
| FedProx | .974 ± .0004 | |
| text, with \\| | **.976** | as published |
"""


@pytest.fixture
def page(tmp_path, monkeypatch):
    """Writes a page of docs; records are the checkout's."""
    monkeypatch.chdir(CHECKOUT)

    def write(text):
        (tmp_path / "results.md").write_text(text)
        return tmp_path / "results.md"

    return write


@pytest.fixture
def nothing_shipped(tmp_path, monkeypatch):
    """Hides the records that come with siloflow."""
    monkeypatch.setattr("publications.sweep.RECORDS", tmp_path / "installed")


def test_a_table_has_a_row_for_each_cell_and_a_column_for_what_is_asked_of_it(page):
    made = renewed(page(TABLE))
    assert MADE in made
    assert made == TABLE.replace("stale\n", MADE)


def test_what_is_written_once_is_not_stale(page):
    assert renewed(page(renewed(page(TABLE)))) == renewed(page(TABLE))


def test_a_figure_that_was_changed_by_hand_is_seen(page):
    text = renewed(page(TABLE))
    changed = page(text.replace("**.976**", "**.986**"))
    assert renewed(changed) == text != changed.read_text()


def test_the_list_of_a_paper_is_a_table_too(page):
    made = renewed(page(LISTED))
    assert "\n`2NN` | Rounds to 97 %: 39 ± 3 with random rows" in made
    assert "All figures: Curves without numbers" in made


@pytest.mark.usefixtures("nothing_shipped")
def test_a_table_of_the_list_without_all_runs_states_what_is_there(page, tmp_path, monkeypatch):
    listed = page(LISTED)
    monkeypatch.chdir(tmp_path)
    assert "\n`2NN` | Not run: Rounds until the 2NN" in renewed(listed)


@pytest.mark.parametrize(
    ("now", "then", "said"),
    [
        ("'fedavg'", "'fedavgm'", "there is no cell 'fedavgm'"),
        (" | default", "", "scale cpu: of the cell fedprox there is no published number."),
        ("fed-focal 2", "fed-focal 99", "fed-focal has no table '99' here"),
        ("figure(", "figures(", "'figures' is undefined."),
        ("['ours']", "['their']", "bold: got 'their', expected one of the headings method, ours, published."),
        ("{% endfor %}", "", "line 9 of the template: Encountered unknown tag 'endfilter'."),
    ],
)
def test_a_template_that_cannot_be_filled_is_refused_with_its_page(page, now, then, said):
    with pytest.raises(UserError) as refused:
        renewed(page(TABLE.replace(now, then)))
    assert str(refused.value).startswith("results.md, <!-- table: fed-focal ")
    assert said in str(refused.value)


def test_a_table_in_a_fenced_block_is_an_example(page):
    shown = f"```text\n{TABLE}```\n"
    assert renewed(page(shown)) == shown
    assert pages(page(shown).parent) == []


def test_a_table_without_an_end_is_no_table(page):
    assert pages(page(TABLE.replace("<!-- end -->", "")).parent) == []


def test_all_pages_are_written_and_only_what_has_changed_is_named(page, capsys):
    docs = page(TABLE).parent
    (docs / "other.md").write_text("No table.\n")
    main(docs)
    assert capsys.readouterr().out == f"written {docs / 'results.md'}\n"
    main(docs)
    assert capsys.readouterr().out == ""
