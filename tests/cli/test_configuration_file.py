"""The configuration file: where its relative paths lead, and which fields are optional."""

from __future__ import annotations

import pytest


@pytest.fixture
def configuration(tmp_path, monkeypatch):
    """Writes the configuration file, in a folder that is neither the working directory nor the home."""
    monkeypatch.delenv("AGENT_DATA_DIR")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    path = tmp_path / "settings" / "config.yaml"
    path.parent.mkdir()

    def write(text: str):
        path.write_text(text)
        return path

    return write


@pytest.mark.parametrize(
    ("data_dir", "folder"), [("~/results", "home/results"), ("results", "settings/results")]
)
def test_data_directory_is_below_the_home_or_beside_the_file(
    agent, configuration, tmp_path, data_dir, folder
):
    path = configuration(f"data_dir: {data_dir}\n")
    answer = agent("--config", path, "info", "evaluation", "latency")
    assert answer.code == 0
    assert (tmp_path / folder / "inferometer.db").is_file()
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_data_directory_of_the_environment_may_begin_with_the_home(
    agent, configuration, tmp_path, monkeypatch
):
    monkeypatch.setenv("AGENT_DATA_DIR", "~/mine")
    assert agent("info", "evaluation", "latency").code == 0
    assert (tmp_path / "home" / "mine" / "inferometer.db").is_file()


@pytest.mark.parametrize("text", ["", "# nothing\n", "database:\n  # address: db:27017\nframework:\n"])
def test_what_is_left_open_is_as_if_it_were_not_there(agent, configuration, text):
    assert agent("--config", configuration(text), "info", "models").code == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("framework: 3\n", "field framework: found 3; allowed: text"),
        ("manifests: mine\n", "field manifests: found 'mine'; allowed: a list"),
        ("database: db:27017\n", "field database: found 'db:27017'; allowed: a mapping"),
        ("database: {adress: x}\n", "field database.adress: is not known; fields: address, name"),
        (
            "serving: {instances: 0}",
            "field serving.instances: found 0; allowed: a whole number of at least 1, or auto",
        ),
        ("serving: {instances: some}", "found 'some'; allowed: a whole number of at least 1, or auto"),
        ("serving: {models: {DigitsCNN: {gpus: 1.5}}}", "DigitsCNN.gpus: found 1.5; allowed: text"),
        ("databse: {}\n", "field databse: is not known; fields: database, tracer"),
        ("just text\n", "holds 'just text'; allowed: a mapping of the fields database, tracer"),
        ("3: x\n", "field 3"),
    ],
)
def test_what_does_not_fit_is_shown_with_what_does(agent, configuration, text, message):
    answer = agent("--config", configuration(text), "info", "evaluation", "latency")
    assert answer.code == 2
    assert message in answer.error


def test_configuration_directory_that_cannot_be_one_is_as_if_there_were_none(agent, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "file"))
    assert agent("info", "models").code == 0


def test_default_configuration_that_cannot_be_read_is_named(agent, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "inferometer" / "config.yaml").mkdir(parents=True)  # no permission would not stop root
    answer = agent("info", "models", "--manifests", tmp_path)
    assert answer.code == 2
    assert "config.yaml: Is a directory" in answer.error
