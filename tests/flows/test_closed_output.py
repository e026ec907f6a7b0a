"""Whoever does not want to read what a command prints hears nothing of that."""

import os
import subprocess
import sys

import pytest

COMMAND = [sys.executable, "-c", "from flows.cli import main; main()"]


@pytest.mark.slow
@pytest.mark.parametrize("typed", [["methods"], ["methods", "--json"], ["--help"]])
def test_a_command_whose_streams_are_closed_works_quietly(typed, tmp_path):
    done = subprocess.run(
        ["sh", "-c", '"$@" >&- <&-', "sh", *COMMAND, *typed], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.sample(2)
@pytest.mark.parametrize("typed", [["methods"], ["methods", "--json"], ["--help"]])
def test_a_command_that_nobody_reads_ends_quietly(typed, tmp_path):
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [*COMMAND, *typed], cwd=tmp_path, stdout=write, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")


def test_a_mistake_with_nowhere_to_tell_it_is_still_one(tmp_path):
    typed = ["sh", "-c", '"$@" 2>&-', "sh", *COMMAND, "show"]
    done = subprocess.run(typed, cwd=tmp_path, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (2, b"")
