"""What of an address may be shown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.tracking.error_messages import has_password, has_wrong_port, mask_passwords, without_login

SECRET = "hunter2"
WITH_A_PASSWORD = [
    "https://me:hunter2@tracker:5000",
    "https://:hunter2@tracker",
    "https://hunter2@tracker:5000/api",
    "postgresql+psycopg2://me:hunter2@db:5432/runs",
    "postgresql://me:p@hunter2@db/runs",
    "postgresql://me:p/hunter2@db/runs",
    "mysql://db/runs?user=me&password=hunter2",
    "mssql+pyodbc:///?odbc_connect=DRIVER%3Dx%3BPWD%3Dhunter2",
    "postgresql:/me:hunter2@db/runs",
    "tls://me:hunter2@10.0.0.5:8786",
]
WITHOUT = [
    "https://tracker:5000",
    "sqlite:////srv/mlflow.db",
    "sqlite:///runs/a:b@c.db",
    "postgresql://me@db/runs",
    "tcp://10.0.0.5:8786",
    "databricks://profile",
    "mysql://db/runs?user=me",
    "a sentence: of words, me@example.org",
]


@pytest.mark.parametrize("address", WITH_A_PASSWORD)
def test_a_password_is_seen_and_hidden_wherever_an_address_has_it(address):
    assert has_password(address)
    for text in (address, f"MLflow at {address}: no answer", f"cannot open '{address}' (Errno 111)"):
        assert SECRET not in mask_passwords(text)
        assert not has_password(mask_passwords(text))


@pytest.mark.parametrize("text", WITHOUT)
def test_what_holds_no_password_is_shown_as_it_is(text):
    assert mask_passwords(text) == text


@given(st.text(st.characters(codec="ascii", exclude_categories=["C", "Z"]), min_size=1))
def test_no_password_is_shown_whatever_its_characters(password):
    address = f"https://me:<{password}>@tracker"
    assert mask_passwords(f"at {address}: gone").startswith("at https://me:***@tracker")


@pytest.mark.parametrize("port", [0, 65536, 99999, -1, "x"])
def test_a_port_that_cannot_be_is_seen_with_and_without_a_scheme(port):
    assert has_wrong_port(f"tcp://10.0.0.5:{port}")
    assert has_wrong_port(f"10.0.0.5:{port}")


@pytest.mark.parametrize("address", ["tcp://10.0.0.5:1", "10.0.0.5:65535", "tcp://host", "tcp://[::1]:8786", "host"])
def test_other_ports_are_right(address):
    assert not has_wrong_port(address)


@pytest.mark.parametrize("address", [address for address in WITH_A_PASSWORD if "://" in address])
def test_a_browser_is_given_no_password(address):
    assert SECRET not in without_login(address)


def test_a_browser_is_given_the_place():
    assert without_login("https://me:hunter2@tracker:5000/mlflow/?token=hunter2") == "https://tracker:5000/mlflow"
    assert without_login("http://tracker") == "http://tracker"
