"""The registry of task implementations: the program's own table, and the entry points of plug-ins.

The registry of postprocessing is here; the registry of metrics is in ``evaluators.tasks.metric``.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from inferometer.manifests.errors import IMPORT_FAILURES, ConfigurationError, one_line, suggestion

if TYPE_CHECKING:  # a listing of models needs no NumPy
    from inferometer.agent.tasks.predictions import PostprocessorType, Predictions

Part = TypeVar("Part")


class TaskRegistry(Generic[Part]):
    """The implementation of each task, such as its postprocessor, by ``output.type``; imported on demand.

    A plug-in has an entry point whose name is the task. Of two with the same name, the program's own is used.
    ``builtin`` has the place of each task as ``"module:name"``; ``key`` and ``what`` are names in messages.
    """

    def __init__(self, key: str, what: str, group: str, builtin: Mapping[str, str]) -> None:
        self._key = key
        self._what = what
        self._group = group
        self._builtin = builtin

    def names(self) -> tuple[str, ...]:
        """Returns the tasks, the program's own first, without importing any."""
        announced = (point.name for point in metadata.entry_points(group=self._group))
        return tuple(dict.fromkeys((*self._builtin, *announced)))

    def __contains__(self, task: object) -> bool:
        return task in self._builtin or bool(metadata.entry_points(group=self._group, name=str(task)))

    def find(self, task: str) -> Part:
        """Imports the implementation of a task.

        Raises:
            ConfigurationError: No implementation exists, or a plug-in's implementation cannot be imported.
        """
        if place := self._builtin.get(task):
            return cast("Part", resolve_name(place))
        points = metadata.entry_points(group=self._group, name=task)
        if not points:
            raise ConfigurationError(
                f'{self._key} "{task}" has no {self._what} here; {suggestion(task, self.names())}'
            )
        point = next(iter(points))
        try:
            found = point.load()
        except IMPORT_FAILURES as error:
            raise ConfigurationError(
                f'the {self._what} of {self._key} "{task}", {point.value}, cannot be imported: '
                f"{one_line(error)}"
            ) from error
        if not callable(found):
            raise ConfigurationError(
                f'the {self._what} of {self._key} "{task}", {point.value}, is {type(found).__name__}, '
                "not a class or function"
            )
        return cast("Part", found)


_BUILTIN = {
    "classification": "inferometer.agent.tasks.vectors:Classification",
    "embedding": "inferometer.agent.tasks.vectors:EmbeddingVectors",
    "question_answering": "inferometer.agent.tasks.vectors:AnswerSpans",
    "raw": "inferometer.agent.tasks.vectors:Raw",
    "object_detection": "inferometer.agent.tasks.objects:DetectionPostprocessor",
    "instance_segmentation": "inferometer.agent.tasks.objects:InstancePostprocessor",
    "semantic_segmentation": "inferometer.agent.tasks.pixels:SemanticSegmentation",
    "image_enhancement": "inferometer.agent.tasks.pixels:ImageEnhancement",
    "regression": "inferometer.agent.tasks.vectors:Regression",
    "text_classification": "inferometer.agent.tasks.vectors:Classification",
    "multilabel_classification": "inferometer.agent.tasks.vectors:MultilabelClassification",
}
POSTPROCESSORS: TaskRegistry[PostprocessorType] = TaskRegistry(
    "output.type", "postprocessing", "inferometer.postprocessors", _BUILTIN
)
"""The postprocessing for each ``output.type``; the table has a line for each of the program's own tasks."""

_PREDICTIONS = "inferometer.agent.tasks.predictions:"
PREDICTIONS: TaskRegistry[type[Predictions]] = TaskRegistry(
    "kind of predictions",
    "class",
    "inferometer.predictions",
    {
        "classifications": f"{_PREDICTIONS}Classifications",
        "detections": f"{_PREDICTIONS}Detections",
        "instances": f"{_PREDICTIONS}Instances",
        "class_maps": f"{_PREDICTIONS}ClassMaps",
        "images": f"{_PREDICTIONS}Images",
        "values": f"{_PREDICTIONS}Values",
        "texts": f"{_PREDICTIONS}Texts",
    },
)
"""The class for each kind of predictions, used to read them from messages or a store."""
