"""Tables of docs/ are written from records, and one that is stale is seen."""

from pathlib import Path

import pytest

from publications.render.doc_tables import main, pages, renewed
from silos.errors import UserError

CHECKOUT = Path(__file__).parents[3]
TABLE = """Before.

<!-- table: fed-focal 2
corner: method
columns:
  - [ours, "{*}", highest]
  - [published, "{*: published?}"]
rows:
  - [FedAvg, fedavg]
  - [published, "fedavg: published"]
  - ["text, with |", "{virtual: mean}", as published]
-->
stale
<!-- end -->

After.
"""
LISTED = "<!-- list: mcmahan -->\n<!-- end -->\n"
MADE = """| method | ours | published |
|---|---|---|
| FedAvg | .969 ± .0003 | .968 |
| published | .968 | .968 |
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
    assert "| `--table 2NN` | cpu recorded, paper not run | Rounds to 97 %: 39 ± 3 with rows at random" in made
    assert "| all figures | not here |" in made


@pytest.mark.parametrize(
    ("now", "then", "said"),
    [
        ("[FedAvg, fedavg]", "[FedAvg, fedavgm]", "there is no cell 'fedavgm'"),
        ("fedavg: published", "fedavg: floor", "of the cell fedavg there is no floor"),
        ("fed-focal 2", "fed-focal 99", "fed-focal has no table '99' here"),
        ("as published]", "as, published]", "the row 'text, with |' has 3 texts, and there are 2 columns"),
        ("corner:", "edge:", "the layout, edge: Extra inputs are not permitted"),
        ("rows:", "rows", "the layout is not valid YAML"),
    ],
)
def test_a_layout_that_cannot_be_filled_is_refused_with_its_page(page, now, then, said):
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
