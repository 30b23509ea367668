"""The session: opening a model, its description, and closing it."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from pipeline_fakes import DEADLINE_S, EchoPredictor, ManualClock, inputs, manifest

from inferometer.agent.hardware.environment import Device, DeviceKind, Precision, usable_cores
from inferometer.agent.inference.registry import FrameworkEntry, Registry
from inferometer.agent.inference.session import MAX_PREPROCESS_THREADS, SessionOptions, open_session
from inferometer.agent.inference.stages import Stage
from inferometer.agent.preprocessing.inputs import Input, Tensors, Url
from inferometer.agent.tasks.predictions import Classifications
from inferometer.manifests.errors import (
    ArtifactError,
    ConfigurationError,
    DeviceError,
    FrameworkUnavailableError,
    PredictionError,
    SessionError,
    UnknownFrameworkError,
)
from inferometer.manifests.schema import ModelManifest

MODULE = "a_framework_of_the_session_tests"
GRAPH_SHA256 = "eef93e1d14482804277fca0172464032d1a4fdbcc338524059fa1e861454ad4d"
ENTRY = FrameworkEntry("Fake", f"{MODULE}:EchoPredictor", ("numpy",), "pip install fake")


class Recorded(EchoPredictor):
    """Remembers every predictor that was made."""

    made: list[EchoPredictor]

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        type(self).made.append(self)


@pytest.fixture
def predictors(monkeypatch: pytest.MonkeyPatch) -> list[EchoPredictor]:
    """The predictors that are made of the framework "Fake"."""
    return install(monkeypatch, Recorded)


def install(monkeypatch: pytest.MonkeyPatch, base: type[Recorded]) -> list[EchoPredictor]:
    made: list[EchoPredictor] = []
    module = ModuleType(MODULE)
    module.EchoPredictor = type("EchoPredictor", (base,), {"made": made})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, MODULE, module)
    return made


@pytest.fixture
def model(tmp_path: Path) -> ModelManifest:
    (tmp_path / "echo").write_bytes(b"graph")
    found = manifest()
    found._source = tmp_path / "echo.yml"
    return found


@pytest.fixture
def registry() -> Registry:
    return Registry([ENTRY])


def test_a_session_loads_the_model_and_answers(
    predictors: list[EchoPredictor], model: ModelManifest, registry: Registry
) -> None:
    with open_session(model, SessionOptions(feature_limit=3), registry) as session:
        one = session.predict(inputs([4, 2]))
        tensor = session.predict_tensor(np.full((1, 1, 1, 1), 7, np.float32))
        batches = list(session.predict_batches([inputs([1]), inputs([2, 3])]))
    assert isinstance(one.outputs, Classifications)
    assert one.outputs.indices.shape == (2, 3)
    assert one.outputs.indices[:, 0].tolist() == [4, 2]
    assert tensor.input_ids == ("0",)
    assert [result.input_ids for result in batches] == [("1",), ("2", "3")]
    assert [p.loads for p in predictors] == [1]


def test_a_feature_limit_of_0_returns_every_class(
    predictors: list[EchoPredictor], model: ModelManifest, registry: Registry
) -> None:
    with open_session(model, SessionOptions(feature_limit=0), registry) as session:
        outputs = session.predict(inputs([4])).outputs
    assert isinstance(outputs, Classifications)
    assert outputs.indices.shape == (1, 10)


def test_a_session_says_what_it_runs_on(
    predictors: list[EchoPredictor], model: ModelManifest, registry: Registry
) -> None:
    with open_session(model, SessionOptions(threads=3, preprocess_threads=2), registry) as session:
        said = session.description
    assert said.manifest is model
    assert said.framework_version == np.__version__
    assert (said.threads, said.preprocess_threads, said.overlap, said.agent) == (3, 2, False, "local")
    assert said.environment.frameworks == {"Fake": np.__version__}
    # a predictor, such as a plug-in's, need not tell anything
    assert (said.environment.libraries, said.environment.build, said.environment.settings) == (
        {},
        "",
        {"memory allocator": "default"},
    )
    assert said.checksums == {"graph": f"sha256:{GRAPH_SHA256}"}


@pytest.mark.parametrize(
    ("options", "threads", "overlap"),
    [
        (SessionOptions(), min(usable_cores(), MAX_PREPROCESS_THREADS), False),
        (SessionOptions(preprocess_threads=0), 0, False),
        (SessionOptions(preprocess_threads=0, overlap=True), 0, False),
        (SessionOptions(preprocess_threads=2, overlap=True), 2, True),
        (SessionOptions(device=Device(DeviceKind.GPU), preprocess_threads=2), 2, True),
        (SessionOptions(device=Device(DeviceKind.GPU), preprocess_threads=2, overlap=False), 2, False),
    ],
)
def test_inputs_are_prepared_meanwhile_on_a_gpu_only_unless_it_is_asked_for(
    predictors: list[EchoPredictor],
    model: ModelManifest,
    registry: Registry,
    options: SessionOptions,
    threads: int,
    overlap: bool,
) -> None:
    with open_session(model, options, registry) as session:
        assert session.description.preprocess_threads == threads
        assert session.description.overlap is overlap
        assert session.description.device == options.device
        assert session.predict(inputs([1])).input_ids == ("1",)


@pytest.mark.parametrize("field", ["preprocess_threads", "feature_limit"])
def test_options_that_make_no_sense_are_refused(field: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{field} is -1; it must be at least 0"):
        SessionOptions(**{field: -1})


@pytest.mark.parametrize("field", ["threads", "preprocess_threads"])
def test_more_threads_than_a_machine_survives_are_refused(field: str) -> None:
    assert getattr(SessionOptions(**{field: 1024}), field) == 1024
    with pytest.raises(ConfigurationError, match=f"{field} is 1025; at most 1024"):
        SessionOptions(**{field: 1025})


def test_the_number_of_threads_of_an_operator_is_at_least_1(
    predictors: list[EchoPredictor], model: ModelManifest, registry: Registry
) -> None:
    with pytest.raises(ConfigurationError, match="threads: found 0"):
        open_session(model, SessionOptions(threads=0), registry)


def test_a_model_in_a_file_has_its_own_precision_and_another_is_refused_before_it_is_loaded(
    predictors: list[EchoPredictor], model: ModelManifest, registry: Registry
) -> None:
    for options in (SessionOptions(), SessionOptions(precision=Precision.FLOAT32)):
        with open_session(model, options, registry) as session:
            assert session.description.precision is None
    with pytest.raises(ConfigurationError, match="has its own precision; only a model that is built in code"):
        open_session(model, SessionOptions(precision=Precision.FLOAT16), registry)
    assert [p.loads for p in predictors] == [1, 1]


def test_what_was_asked_of_cudnn_is_recorded(
    predictors: list[EchoPredictor], model: ModelManifest, registry: Registry
) -> None:
    for wanted in (None, False, True):
        with open_session(model, SessionOptions(cudnn_benchmark=wanted), registry) as session:
            assert session.description.cudnn_benchmark is wanted
            assert predictors[-1].options.cudnn_benchmark is wanted


def test_urls_are_not_fetched_unless_the_session_is_given_the_means(
    predictors: list[EchoPredictor], model: ModelManifest, registry: Registry
) -> None:
    asked: list[str] = []

    def fetch(address: str) -> bytes:
        asked.append(address)
        return b"no image"

    url = [Input("a", Url("http://x"))]
    with open_session(model, SessionOptions(), registry) as session:
        refused = session.predict(url)
    with open_session(model, SessionOptions(), registry, fetch=fetch) as session:
        fetched = session.predict(url)
    assert [(f.stage, f.message) for f in refused.failures] == [
        (Stage.READ, "http://x: this session fetches no URLs")
    ]
    assert [f.stage for f in fetched.failures] == [Stage.PREPROCESS]
    assert asked == ["http://x"]


def test_the_clock_that_is_given_times_the_stages(
    predictors: list[EchoPredictor], model: ModelManifest, registry: Registry
) -> None:
    clock = ManualClock()
    with open_session(model, SessionOptions(), registry, clock=clock) as session:
        predictors[0].during = lambda _: clock.advance(5)
        assert session.predict(inputs([1])).times.predict_ns == 5


def test_closing_frees_the_model_and_may_be_done_again(
    predictors: list[EchoPredictor], model: ModelManifest, registry: Registry
) -> None:
    session = open_session(model, SessionOptions(), registry)
    session.predict(inputs([1]))
    assert predictors[0].closes == 0
    session.close()
    session.close()
    assert predictors[0].closes >= 1
    with pytest.raises(SessionError, match="closed"):
        session.predict(inputs([1]))
    assert predictors[0].batches == [[1]]


def test_no_thread_is_left_behind(
    predictors: list[EchoPredictor], model: ModelManifest, registry: Registry
) -> None:
    before = set(threading.enumerate())
    with open_session(model, SessionOptions(preprocess_threads=4), registry) as session:
        list(session.predict_batches([inputs(range(8)) for _ in range(4)]))
        assert 1 <= len(set(threading.enumerate()) - before) <= 4
    for thread in set(threading.enumerate()) - before:
        thread.join(DEADLINE_S)
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize("error", [DeviceError("no GPU"), ArtifactError("truncated"), KeyboardInterrupt()])
def test_a_model_that_cannot_be_loaded_is_closed(
    monkeypatch: pytest.MonkeyPatch, model: ModelManifest, registry: Registry, error: BaseException
) -> None:
    class Failing(Recorded):
        def load(self) -> None:
            raise error

    made = install(monkeypatch, Failing)
    with pytest.raises(type(error)):
        open_session(model, SessionOptions(), registry)
    assert [p.closes for p in made] == [1]


def test_a_framework_that_fails_on_a_batch_leaves_the_session_open(
    monkeypatch: pytest.MonkeyPatch, model: ModelManifest, registry: Registry
) -> None:
    class Once(Recorded):
        def predict(self, inputs: Tensors) -> Tensors:
            answer = super().predict(inputs)
            if len(self.batches) == 1:
                raise PredictionError("failed")
            return answer

    install(monkeypatch, Once)
    with open_session(model, SessionOptions(), registry) as session:
        assert [f.stage for f in session.predict(inputs([1])).failures] == [Stage.PREDICT]
        assert session.predict(inputs([1])).input_ids == ("1",)


def test_a_missing_file_of_the_model_is_refused_before_anything_is_loaded(
    predictors: list[EchoPredictor], model: ModelManifest, registry: Registry, tmp_path: Path
) -> None:
    (tmp_path / "echo").unlink()
    with pytest.raises(ArtifactError, match="missing"):
        open_session(model, SessionOptions(), registry)
    assert predictors == []


def test_a_framework_that_is_unknown_or_not_installed_is_refused(
    model: ModelManifest, registry: Registry
) -> None:
    with pytest.raises(UnknownFrameworkError, match='unknown framework "Fake"'):
        open_session(model, SessionOptions(), Registry())
    absent = FrameworkEntry("Fake", "x:Y", ("a-distribution-that-is-not-there",), "pip install fake")
    with pytest.raises(FrameworkUnavailableError, match="pip install fake"):
        open_session(model, SessionOptions(), Registry([absent]))
