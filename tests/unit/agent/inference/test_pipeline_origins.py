"""Where inputs came from, which postprocessing gets if its task asks for it."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray
from pipeline_fakes import EchoPredictor, manifest, number, opened

from inferometer.agent.inference.stages import Postprocessor
from inferometer.agent.preprocessing.inputs import EncodedImage, Input, Pixels, Tensors
from inferometer.agent.tasks.predictions import PredictedInputs, TaskPostprocessor, Values


class Recorder(TaskPostprocessor):
    """Keeps what it is told of the inputs."""

    def __init__(self) -> None:
        self.told: list[PredictedInputs] = []

    def __call__(self, tensors: Tensors, inputs: PredictedInputs) -> tuple[Values, NDArray[np.bool_]]:
        self.told.append(inputs)
        return Values(np.zeros((inputs.size, 1), np.float32)), np.ones(inputs.size, np.bool_)


class Curious(Recorder):
    wants_inputs: ClassVar[bool] = True


def postprocessor(task: Recorder) -> Postprocessor:
    found = Postprocessor(manifest().output, 1)
    found._task, found.wants_inputs = task, task.wants_inputs
    return found


BATCH = [
    Input("wide", Pixels(np.zeros((2, 4), np.uint8))),
    Input("broken", EncodedImage(b"no image")),
    Input("tensor", number(3)),
    Input("high", Pixels(np.zeros((6, 2), np.uint8))),
]


@pytest.mark.parametrize("threads", [0, 2])
def test_a_task_that_asks_gets_the_geometry_of_each_predicted_image(threads: int) -> None:
    task = Curious()
    with opened(EchoPredictor(), threads=threads, postprocessor=postprocessor(task)) as pipeline:
        [result] = pipeline.predict_batches([BATCH])

    assert result.input_ids == ("wide", "tensor", "high")
    [told] = task.told
    sizes = [each and (each.width, each.height) for each in told.geometries]
    assert (told.size, sizes, told.texts) == (3, [(4, 2), None, (2, 6)], (None, None, None))


def test_a_task_that_does_not_ask_gets_the_number_alone() -> None:
    task = Recorder()
    with opened(EchoPredictor(), postprocessor=postprocessor(task)) as pipeline:
        pipeline.predict(BATCH)
    assert [(each.size, each.geometries, each.texts) for each in task.told] == [(3, (), ())]
