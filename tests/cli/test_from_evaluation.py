"""The operators of a traced model: rows for nearly all of its time, and reasons for the rest."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from inferometer.agent.inference.registry import Registry
from inferometer.agent.operators.operator import Operator, OperatorRunner, RunnerOptions, operators
from inferometer.client.api.invocation import library_invocation
from inferometer.client.evaluating.operators import explained_lines, open_traced, traced_lines, traced_request
from inferometer.evaluators.kinds.operators.from_trace import explain, request_of
from inferometer.evaluators.kinds.operators.measurement import OperatorRow, RowStatus
from inferometer.evaluators.kinds.operators.options import Mode, OperatorOptions
from inferometer.evaluators.kinds.operators.request import draw_inputs
from inferometer.manifests.errors import ConfigurationError, UnknownEvaluationError
from tests.cli.conftest import Agent

BATCH_SIZE = 2
FRAMEWORKS = ("PyTorch", "MXNet", "ONNXRuntime")


@pytest.fixture
def images(tmp_path: Path) -> Path:
    folder = tmp_path / "images" / "n01440764"
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    for number in range(3 * BATCH_SIZE):
        Image.fromarray(random.integers(0, 255, (32, 32, 3), np.uint8)).save(folder / f"{number}.png")
    return folder.parent


def evaluated(agent: Agent, images: Path, framework: str, level: str = "FRAMEWORK_TRACE") -> str:
    answer = agent(
        "predict",
        "dataset",
        "--model_name=ResNet18",
        f"--framework_name={framework}",
        "--weights=random",
        f"--dataset_path={images}",
        f"--batch_size={BATCH_SIZE}",
        f"--trace_level={level}",
    )
    assert answer.code == 0, answer.stderr
    return answer.figure("evaluation")


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_nearly_all_of_a_networks_time_has_a_row_and_every_case_runs(
    agent: Agent, images: Path, framework: str
) -> None:
    evaluation, traced = open_traced(library_invocation(), evaluated(agent, images, framework))

    assert traced.share_percent >= 90, traced.without_row
    convolutions = [each for each in traced.cases if each.case.operator == "conv2d"]
    assert sum(each.count for each in convolutions) == 20
    assert {each.case.shapes["data"][0] for each in convolutions} == {BATCH_SIZE}
    first = convolutions[0].case.parameters
    assert (first["kernel"], first["stride"], first["pad"]) == ((7, 7), (2, 2), (3, 3))
    assert all(each.reason for each in traced.without_row)
    request = request_of(traced, evaluation, OperatorOptions())
    assert request.frameworks == (framework,)
    assert len(request.cases()) == len(traced.cases)
    assert request.threads == evaluation.system.threads

    runner: OperatorRunner = Registry().find(framework).load_operators()(RunnerOptions())  # type: ignore[operator]
    for each in traced.cases:
        operator = operators()[each.case.operator]
        case = operator.own_case(each.case.shapes, each.case.parameters)
        call = runner.prepare(operator, case, draw_inputs(operator, case, np.dtype(np.float32), 0))
        call.forward()
        assert call.outputs()[0].size


def test_the_rows_are_compared_with_their_layers(agent: Agent, images: Path) -> None:
    evaluation, traced = open_traced(library_invocation(), evaluated(agent, images, "MXNet"))
    request, again = traced_request(library_invocation(), evaluation.id, {}, OperatorOptions())
    assert again.cases == traced.cases
    rows = [measured(name, case, 1_000_000) for name, case in request.cases()]

    found, rows_ns = explain(traced, rows)
    layers = sum(each.count for each in traced.cases)
    assert rows_ns == 1e6 * layers
    assert found.share_percent == pytest.approx(traced.share_percent)
    said = "\n".join([*traced_lines(traced), *explained_lines(traced, rows)])
    assert f"rows found for {found.share_percent:.1f} % of the layers' time" in said
    assert f"p50 × count of the rows {layers:.3f} ms" in said
    assert f"(ratio {1e6 * layers / found.covered_ns:.2f})" in said

    without_first, _ = explain(traced, rows[1:])
    assert without_first.share_percent < found.share_percent
    assert "it was not measured" in [each.reason for each in without_first.without_row]


def measured(name: str, case, nanoseconds: int) -> OperatorRow:
    operator: Operator = operators()[name]
    return OperatorRow(
        operator=name,
        category=operator.category.value,
        preset=case.preset,
        shapes={spec.name: spec.shape for spec in operator.tensors(case)},
        parameters=case.parameters,
        form="",
        api="",
        mode=Mode.FORWARD,
        status=RowStatus.MEASURED,
        times_ns=np.full(5, nanoseconds, np.int64),
    )


def test_an_option_that_the_evaluation_decides_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="takes this from the evaluation; leave out --shapes"):
        traced_request(library_invocation(), "any", {"shapes": "small"}, OperatorOptions())


def test_an_evaluation_without_layers_is_refused(agent: Agent, images: Path) -> None:
    shallow = evaluated(agent, images, "ONNXRuntime", level="MODEL_TRACE")

    with pytest.raises(ConfigurationError, match="evaluate with --trace_level=FRAMEWORK_TRACE"):
        open_traced(library_invocation(), shallow)
    with pytest.raises(UnknownEvaluationError):
        open_traced(library_invocation(), "no-such-id")
