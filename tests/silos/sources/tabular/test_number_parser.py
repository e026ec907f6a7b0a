"""Numbers that are written as text are read as they are meant, or refused if they can be read in two ways."""

import io
import random
import re

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from silos.errors import UserError

SEPARATORS = [";", ",", "\t"]
IN_TWO_WAYS = {"point": ["950", "1.250", "12.500"], "comma": ["950", "1,250", "-12,500"]}
CERTAIN = {
    "Europe": (["950", "1.234.567,5"], [950, 1234567.5]),
    "grouped twice": (["950", "1.234.567"], [950, 1234567]),
    "Britain": (["950", "1,234.5"], [950, 1234.5]),
    "India": (["950", "12,34,567.8"], [950, 1234567.8]),
    "Switzerland": (["950", "1'234.5"], [950, 1234.5]),
    "Switzerland, typographic": (["-950", "-1’234’567"], [-950, -1234567]),
    "space": (["950", "12 500"], [950, 12500]),
    "no-break space": (["950", "12\u00a0500.25"], [950, 12500.25]),
    "narrow no-break space": (["950", "12\u202f500"], [950, 12500]),
    "thin space": (["950", "12\u2009500"], [950, 12500]),
    "Unicode minus": (["\u221212.5", "3"], [-12.5, 3]),
}
NOT_READ = {
    "brackets": ["(12.5)", "3"],
    "percent": ["5%", "10 %"],
    "per mille": ["5‰", "3"],
    "currency before": ["€ 5", "-$3"],
    "currency behind": ["5 EUR", "3 kr"],
    "trailing minus": ["12-", "3"],
    "en dash": ["–12", "3"],
    "underscore": ["1_000", "3"],
    "full width": ["１２", "３"],
    "Arabic digits": ["١٢", "٣"],
    "infinity": ["∞", "3"],
    "repeated mark": ["1,2,3", "3"],
    "two styles": ["1.5", "2,5"],
    "odd groups": ["1'23", "4"],
    "hexadecimal": ["0x10", "0xff"],
    "Fortran's exponent": ["1.5D+02", "3.25d-1"],
    "hours beyond a day": ["100:30:00", "26:05:10"],
    "days and hours": ["2 days 03:04:05", "1 day, 3:04:05"],
    "two units": ["1h 30m", "45 min 10 s"],
    "ISO durations": ["PT1H30M", "P2DT3H"],
    "one unit": [f"{at}.5 kg" for at in range(30)],
}


def table(separator: str, **columns: list[str]) -> str:
    """A CSV with the columns and a label y; every field is in quotes."""
    held = {**columns, "y": [str(at % 2) for at in range(len(next(iter(columns.values()))))]}
    rows = [list(held), *zip(*held.values(), strict=True)]
    return "".join(separator.join(f'"{value}"' for value in row) + "\n" for row in rows)


def texts(**columns: list[str]) -> pa.Table:
    return pa.table({**columns, "y": [at % 2 for at in range(len(next(iter(columns.values()))))]})


def column(rows, at: int = 0) -> list[float]:
    return rows.x[:, at].tolist()


def refused(read, *held, **options) -> str:
    with pytest.raises(UserError) as caught:
        read(*held, **options)
    return str(caught.value)


def test_points_are_thousands_where_another_column_shows_decimal_commas(read):
    rows = read("income;visits;y\n950;1,5;0\n1.250;2,5;1\n12.500;0,5;0\n")
    assert rows.x.tolist() == [[950, 1.5], [1250, 2.5], [12500, 0.5]]
    assert "read as numbers: income (1.250 is 1250, as decimal commas in visits say)" in rows.notes


@pytest.mark.parametrize("separator", SEPARATORS)
@pytest.mark.parametrize("mark", IN_TWO_WAYS)
def test_numbers_that_may_be_fractions_or_thousands_are_refused(read, separator, mark):
    said = refused(read, table(separator, a=IN_TWO_WAYS[mark], b=["1", "2", "3"]))
    assert f"may be fractions or thousands, such as '{IN_TWO_WAYS[mark][1]}' in row 3 (the header is row 1)" in said
    assert "in 2 of 3 rows" in said
    assert "fractions or thousands" in refused(read, table(separator, a=["950", "1.250"], b=["1", "1,250"]))


@pytest.mark.parametrize("separator", SEPARATORS)
@pytest.mark.parametrize("mark", IN_TWO_WAYS)
def test_the_user_may_give_the_decimal_mark(read, separator, mark):
    held = table(separator, a=IN_TWO_WAYS[mark])
    plain = [float(text.replace(",", ".")) for text in IN_TWO_WAYS[mark]]
    grouped = [float(re.sub("[.,]", "", text)) for text in IN_TWO_WAYS[mark]]
    assert column(read(held, decimal=".")) == (plain if mark == "point" else grouped)
    assert column(read(held, decimal=",")) == (grouped if mark == "point" else plain)


def test_a_column_that_shows_its_mark_is_read_by_it_whatever_others_show(read):
    assert column(read(table(",", a=["1.250", "0.750"]))) == [1.25, 0.75]
    assert column(read(table(";", a=["1.250", "1.5"], b=["2,5", "1"]))) == [1.25, 1.5]
    assert column(read(table(";", a=["1,250", "12,5"], b=["2.5", "1"]))) == [1.25, 12.5]
    assert column(read(table(",", a=["1.250", "1.25e3"]))) == [1.25, 1250]


def test_another_column_with_a_decimal_point_decides_too(read):
    assert column(read(table(",", a=["950", "1.250"], b=["0.5", "1"]))) == [950, 1.25]
    assert column(read(table(",", a=["950", "1,250"], b=["0.5", "1"]))) == [950, 1250]


def test_columns_that_contradict_each_other_decide_nothing(read):
    held = table(";", a=["950", "1.250"], b=["0.5", "1"], c=["0,5", "1"])
    assert "'a': got numbers that may be fractions or thousands" in refused(read, held)
    assert column(read(held.replace("0,5", "5"))) == [950, 1.25]


@pytest.mark.parametrize("style", CERTAIN)
def test_a_number_that_can_be_read_in_one_way_only_is_read_and_shown(read, style):
    held, numbers = CERTAIN[style]
    rows = read(table(";", a=held))
    assert rows.x[:, 0] == pytest.approx(np.float32(numbers), rel=0, abs=0)
    assert any(note.startswith("read as numbers: a (") for note in rows.notes)


def test_decimal_commas_outside_of_files_with_semicolons_need_the_key(read):
    for separator in (",", "\t"):
        held = table(separator, a=["1,5", "2"], b=["950", "1.250"])
        assert "such as '1,5' in row 2 (the header is row 1), in 1 of 2 rows, expected" in refused(read, held)
        assert "'b': got numbers that may be" in refused(read, held, drop=["a"])
        assert read(held, decimal=",").x.tolist() == [[1.5, 950], [2, 1250]]


def test_a_number_that_contradicts_the_key_is_refused(read):
    assert "'a': got numbers that are not written plainly, such as '1.5'" in refused(
        read, table(";", a=["1.5", "2,5"]), decimal=","
    )


@pytest.mark.slow
@pytest.mark.parametrize("separator", SEPARATORS)
@pytest.mark.parametrize("style", NOT_READ)
def test_what_a_person_reads_as_numbers_is_no_category(read, separator, style):
    said = refused(read, table(separator, a=NOT_READ[style]))
    assert "'a': got numbers that are not written plainly, such as " in said
    more = [f"{value}0%" for value in range(1, 4)]
    assert "got numbers mixed with text: 4 of 4 rows" in refused(read, table(separator, a=[*more, "unknown"]))


def test_texts_with_a_digit_stay_categories(read):
    for held in (["A+", "0-", "0+", "AB-"], ["<18", "18-35", ">35"], ["2a", "2b", "3a"], ["5 mg", "10 mg", "20 mg"]):
        rows = read(table(",", a=held))
        assert sorted(feature.name for feature in rows.features) == sorted(f"a={text}" for text in held)


def test_a_decimal_comma_among_words_is_mixed_like_a_point(read):
    for held in (["1,5", "unknown", "high"], ["1.5", "unknown", "high"]):
        assert "got numbers mixed with text: 2 of 3 rows hold no number, the first is 'unknown'" in refused(
            read, table(";", a=held)
        )


@pytest.mark.slow
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=40, deadline=None
)
@given(st.data())
def test_numbers_of_any_style_are_those_that_pandas_reads(read, data):
    """A column of Python's own formatting, in European, British or Swiss style, or plain."""
    decimal, thousands = data.draw(st.sampled_from([(",", "."), (".", ","), (".", "'"), (",", "\u00a0"), (".", "")]))
    values = [*data.draw(st.lists(st.floats(-1e7, 1e7), max_size=8)), 0.5, 9e6]
    digits = data.draw(st.sampled_from([1, 2]))
    swap = str.maketrans({",": thousands, ".": decimal})
    text = table(";", a=[f"{value:,.{digits}f}".translate(swap) for value in values])
    rows = read(text)
    one_byte = "'" if thousands == "\u00a0" else thousands
    bare = io.StringIO(text.replace("\u00a0", one_byte))
    frame = pd.read_csv(bare, sep=";", decimal=decimal, thousands=one_byte or None)
    assert np.array_equal(rows.x[:, 0], frame["a"].to_numpy(np.float32))
    assert np.array_equal(read(text, decimal=decimal).x, rows.x)


def test_plain_numbers_are_read_as_float_reads_them(read):
    random.seed(0)
    held = [repr(random.gauss(0, 10 ** random.randint(-3, 9))) for _ in range(200)] + [
        "+5",
        "1e5",
        "007",
        ".5",
        "5.",
        "-0",
    ]
    assert column(read(table(",", a=held))) == [float(np.float32(float(text))) for text in held]


def test_numbers_in_a_text_column_of_parquet_are_refused_unless_they_are_plain(read):
    for held, said in {
        ("950", "1.250"): "may be fractions or thousands, such as '1.250' in row 1, in 1 of 2 rows",
        ("1,5", "2"): "not written plainly, such as '1,5' in row 0",
        ("1'234.5", "2"): 'not written plainly, such as "1\'234.5"',
        ("\u22125", "2"): "not written plainly",
        ("5%", "2"): "not written plainly",
        ("<0.5", "2"): "limits among numbers",
    }.items():
        assert said in refused(read, texts(a=list(held)))
    assert column(read(texts(a=["950", "1.250"]), decimal=",")) == [950, 1250]
    assert column(read(texts(a=["0.5", "\u22122"]), decimal=".")) == [0.5, -2]
    for plain in (["1", "2"], ["1.5", "2"]):
        rows = read(texts(a=plain))
        assert [feature.name for feature in rows.features] == [f"a={text}" for text in plain]
        assert "categories that may be numbers, since the file stores them as text: a" in rows.notes
    assert [f.name for f in read(texts(a=["07302", "10001"]), decimal=".").features] == ["a=07302", "a=10001"]


def test_a_regression_is_not_told_thousands_for_fractions(read):
    held = "a,y\n" + "".join(f"{at},{text}\n" for at, text in enumerate(IN_TWO_WAYS["point"]))
    assert "the label 'y': got numbers that may be fractions or thousands" in refused(read, held, task="regression")
    assert read(held, task="regression", decimal=",").y.tolist() == [950, 1250, 12500]


LIMITS = ["0.7", "<0.5", ">90", "≤ 2", ">=3"]


def test_limits_of_detection_are_refused_with_row_value_and_count_and_the_choice(read):
    said = refused(read, table(",", a=LIMITS))
    assert "'a': got limits among numbers, such as '<0.5' in row 3 (the header is row 1), in 4 of 5 rows" in said
    assert "`censored: limit`" in said
    assert "`censored: half`" in said


@pytest.mark.parametrize(
    ("censored", "numbers"), [("limit", [0.7, 0.5, 90, 2, 3]), ("half", [0.7, 0.25, 90, 1, 3])], ids=["limit", "half"]
)
def test_limits_are_read_as_the_user_says(read, censored, numbers):
    for held in (table(",", a=LIMITS), texts(a=LIMITS)):
        rows = read(held, censored=censored)
        assert column(rows) == np.float32(numbers).tolist()
        assert any(note.startswith("read as numbers: a (<0.5 is 0.") for note in rows.notes)
    commas = [text.replace(".", ",") for text in LIMITS]
    assert column(read(table(";", a=commas), censored=censored)) == np.float32(numbers).tolist()


def test_half_of_a_negative_limit_is_no_number(read):
    held = table(",", a=["-1", "<-2"])
    assert column(read(held, censored="limit")) == [-1, -2]
    assert column(read(table(",", a=["-1", "<0"]), censored="half")) == [-1, 0]
    assert "'<-2' in row 3" in refused(read, held, censored="half")
    with_text = table(",", a=["1", "<2", "lost"])
    assert "1 of 3 rows hold no number, the first is 'lost'" in refused(read, with_text, censored="half")


@pytest.mark.slow
@pytest.mark.parametrize("role", ["label", "client", "domain"])
@pytest.mark.parametrize("word", ["NA", "N/A", "#N/A", "nan", "null"])
def test_a_name_that_may_be_a_missing_value_is_refused_until_the_user_says_what_it_is(read, role, word):
    held = f"r,a,y\nu,1,0\n{word},2,1\nv,3,1\n"
    said = refused(read, held, **{role: "r"})
    assert f"the {role} 'r': got '{word}' in 1 of 3 rows, the first row 3 (the header is row 1)" in said
    assert f'`na_values: ["{word}"]`' in said
    kept, dropped = (
        read(held, **{role: "r"}, **more) for more in ({"na_values": []}, {"na_values": [word], "missing": "drop_rows"})
    )
    assert (len(kept.y), len(dropped.y)) == (3, 2)
    if role == "label":
        assert word in kept.classes
        assert word not in dropped.classes


def test_a_number_that_may_be_a_missing_value_is_noted_with_its_share_unless_na_values_says_what_is_missing(read):
    held = "price,age,y\n" + "".join(
        f"{-999 if row % 33 == 1 else row * 7.5},{row % 60},{row % 2}\n" for row in range(370)
    )
    way_out = "data.source.na_values, before the first report"
    note = f"numbers that may be missing values ({way_out}): price (-999 in 3.2 % of rows)"
    assert note in read(held).notes
    gaps = re.sub(r"(?m)^1\d\d\.\d,", ",", held)  # of all rows, also of those without a number
    assert note in read(gaps, missing={"fill": 0}).notes
    for na_values in ([], [-999]):
        assert not any("numbers that may" in of for of in read(held, na_values=na_values, missing="drop_rows").notes)


def test_na_values_are_missing_in_any_column_and_a_category_that_may_be_one_is_noted(read):
    held = "a,w,y\n1,NA,0\n-999,u,1\n3,v,1\n"
    assert "categories that may be missing values (data.source.na_values): w (NA)" in read(held).notes
    rows = read(held, na_values=["na", -999], missing={"fill": 0})
    assert [feature.name for feature in rows.features] == ["a", "w=u", "w=v", "w is missing"]
    assert rows.missing[:, 0].tolist() == [False, True, False]
    assert not any(note.startswith("categories") for note in rows.notes)
