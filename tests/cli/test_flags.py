"""Flags as people and scripts write them: combined, with and without values, next to similar values."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest

FEW = ("predict", "dataset", "--framework_name=ONNXRuntime", "--num_file_parts=1", "--publish=false")
LISTING = ("info", "datasets", "-f", "csv", "--no_header")


@pytest.fixture(autouse=True)
def _levels():
    """Puts the levels of the program's loggers back, which the flags set."""
    loggers = [logging.getLogger(name) for name in ("agent", "client", "evaluators", "manifests")]
    before = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, before, strict=True):
        logger.setLevel(level)


@pytest.mark.parametrize(
    "arguments",
    [
        ("-vd", *FEW, "-b", "8"),
        (*FEW, "-vdb", "8"),
        (*FEW, "-db8", "-v"),
        ("-v=true", *FEW, "-d=false", "-b8"),
        ("--verbose", *FEW, "--batch_size", "8"),
    ],
)
def test_flags_of_one_letter_stand_together_and_before_an_option_with_a_value(agent, caplog, arguments):
    answer = agent(*arguments)
    assert answer.code == 0, answer.stderr
    assert "(8 of 8 inputs)" in answer.figure("top-1")
    assert any(message.startswith("manifest ") for message in caplog.messages)


def test_flag_that_is_turned_off_is_off(agent, caplog):
    answer = agent("-v=false", *FEW, "--debug=false")
    assert answer.code == 0
    assert answer.stderr == ""
    assert caplog.messages == []


@pytest.mark.parametrize("value", ["", " ", "maybe"])
@pytest.mark.parametrize("flag", ["--gpu", "--publish"])
def test_boolean_without_a_boolean_is_refused_not_guessed(agent, flag, value):
    answer = agent("predict", "dataset", f"{flag}={value}")
    assert answer.code == 2
    assert flag in answer.error
    assert "use true or false" in answer.error


def test_help_among_other_flags_is_given(agent):
    answer = agent("predict", "dataset", "-vh")
    assert answer.code == 0
    assert answer.stdout.startswith("Usage: agent predict dataset")


def test_value_that_looks_like_a_flag_is_the_value(agent):
    answer = agent(*LISTING, "--secret", "-d", "-s", "--verbose")
    assert answer.code == 0
    assert answer.stderr == ""
    missing = agent("info", "models", "--manifests", "-v")
    assert missing.code == 2
    assert "manifest directory -v does not exist" in missing.error


@pytest.mark.parametrize(("word", "named"), [("-vx", "-x"), ("-x", "-x")])
def test_unknown_letter_is_named(agent, word, named):
    answer = agent("info", "models", word)
    assert answer.code == 2
    assert f"'{named}'" in answer.error


def test_debug_shows_no_chatter_of_libraries():
    command = [sys.executable, "-c", "from inferometer.client.cli.main import main; main()", "--debug", *FEW]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    logged = answer.stderr.splitlines()
    assert logged
    assert all(line.split()[1].startswith("inferometer.") for line in logged), logged
