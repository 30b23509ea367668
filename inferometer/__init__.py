"""Measures how fast and how well machine-learning models run, and where the time goes.

The names of ``__all__`` are what plug-ins and scripts import. They stay stable while the modules behind
them move. Each name is imported when it is first used: ``import inferometer`` loads no framework, no NumPy,
no gRPC and no database. docs/plugins.md describes them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inferometer.agent import __version__
    from inferometer.agent.artifacts.model_files import Artifacts
    from inferometer.agent.artifacts.signature import InputSignature, ModelSignature
    from inferometer.agent.hardware.device import Device, DeviceKind
    from inferometer.agent.hardware.environment import FrameworkDetails
    from inferometer.agent.inference.predictor import Precision, Predictor, PredictorOptions, Tensors, Weights
    from inferometer.agent.inference.registry import FrameworkEntry
    from inferometer.agent.preprocessing.inputs import EncodedImage, Pixels, Tensor, Url
    from inferometer.agent.preprocessing.origins import ImageGeometry, TokenizedText
    from inferometer.agent.tasks.postprocessing import PredictedInputs, TaskPostprocessor
    from inferometer.agent.tasks.predictions import (
        Classifications,
        ClassMaps,
        Detections,
        Images,
        Instances,
        Predictions,
        Texts,
        Values,
    )
    from inferometer.agent.tracing.profiler import LayerWriter, PredictWindow, Profiler
    from inferometer.agent.tracing.recorder import SpanRecorder
    from inferometer.agent.tracing.span import SpanKind, TraceLevel
    from inferometer.agent.training.trainer import (
        OptimizerOptions,
        PlacedBatch,
        Rank,
        StepParts,
        StepResult,
        Trainer,
        TrainerOptions,
        TrainingBatch,
    )
    from inferometer.client.library.benchmarks import DataArguments, TrainingArguments, ingest, train
    from inferometer.client.library.comparing import Comparison, compare
    from inferometer.client.library.evaluating import evaluate, sweep
    from inferometer.client.library.load import (
        LatencyPercentile,
        LoadArguments,
        RateSearch,
        WorkloadRun,
        max_qps,
        workload,
    )
    from inferometer.client.library.measuring import measure
    from inferometer.client.library.operator_runs import (
        OperatorArguments,
        OperatorRun,
        OperatorRuns,
        benchmark_operators,
    )
    from inferometer.client.library.runs import Latency, Run, Runs, TopAccuracy
    from inferometer.client.library.stored import Evaluations, evaluations
    from inferometer.client.library.tables import Rows
    from inferometer.client.library.trainings import Ingestion, StepPartTimes, Training
    from inferometer.client.score.from_python import Scores, score
    from inferometer.client.serving.from_python import ServedAgent, serve
    from inferometer.evaluators.comparing.times import RunTimes
    from inferometer.evaluators.datasets.base import Dataset, DatasetIdentity, Sample
    from inferometer.evaluators.datasets.truths import (
        AcceptedAnswers,
        ClassMap,
        Objects,
        Polygons,
        RunLengths,
        TargetImage,
        TargetValues,
    )
    from inferometer.evaluators.evaluation import Evaluation, Status
    from inferometer.evaluators.jobs.declaring import check_options, declared, given_options
    from inferometer.evaluators.jobs.ranges import Range
    from inferometer.evaluators.jobs.requests import SystemRequest
    from inferometer.evaluators.kinds.batches.measurement import BatchMeasurement
    from inferometer.evaluators.kinds.ingestion.measurement import IngestionMeasurement
    from inferometer.evaluators.kinds.kind import Kind, top_figures
    from inferometer.evaluators.kinds.load.measurement import LoadMeasurement
    from inferometer.evaluators.kinds.operators.measurement import OperatorMeasurement
    from inferometer.evaluators.kinds.rate_search.measurement import RateSearchMeasurement
    from inferometer.evaluators.kinds.training.measurement import TrainingMeasurement
    from inferometer.evaluators.reports.base import Column, Report, Row, describe
    from inferometer.evaluators.running.job import Job
    from inferometer.evaluators.running.resources import JobCallbacks, JobResources, JobStart
    from inferometer.evaluators.tasks.bootstrap import bootstrap_interval
    from inferometer.evaluators.tasks.metric import TaskMetric
    from inferometer.evaluators.tasks.scores import Score, ScoreInterval, TaskResult
    from inferometer.manifests.errors import (
        ArtifactError,
        ConfigurationError,
        DatasetError,
        DeviceError,
        DeviceLostError,
        InferometerError,
        InputError,
        OutOfMemoryError,
        PredictionError,
        TrainingError,
    )
    from inferometer.manifests.schema import Loss, ModelManifest, ModelOutput

__all__ = [
    "AcceptedAnswers",
    "ArtifactError",
    "Artifacts",
    "BatchMeasurement",
    "ClassMap",
    "ClassMaps",
    "Classifications",
    "Column",
    "Comparison",
    "ConfigurationError",
    "DataArguments",
    "Dataset",
    "DatasetError",
    "DatasetIdentity",
    "Detections",
    "Device",
    "DeviceError",
    "DeviceKind",
    "DeviceLostError",
    "EncodedImage",
    "Evaluation",
    "Evaluations",
    "FrameworkDetails",
    "FrameworkEntry",
    "ImageGeometry",
    "Images",
    "InferometerError",
    "Ingestion",
    "IngestionMeasurement",
    "InputError",
    "InputSignature",
    "Instances",
    "Job",
    "JobCallbacks",
    "JobResources",
    "JobStart",
    "Kind",
    "Latency",
    "LatencyPercentile",
    "LayerWriter",
    "LoadArguments",
    "LoadMeasurement",
    "Loss",
    "ModelManifest",
    "ModelOutput",
    "ModelSignature",
    "Objects",
    "OperatorArguments",
    "OperatorMeasurement",
    "OperatorRun",
    "OperatorRuns",
    "OptimizerOptions",
    "OutOfMemoryError",
    "Pixels",
    "PlacedBatch",
    "Polygons",
    "Precision",
    "PredictWindow",
    "PredictedInputs",
    "PredictionError",
    "Predictions",
    "Predictor",
    "PredictorOptions",
    "Profiler",
    "Range",
    "Rank",
    "RateSearch",
    "RateSearchMeasurement",
    "Report",
    "Row",
    "Rows",
    "Run",
    "RunLengths",
    "RunTimes",
    "Runs",
    "Sample",
    "Score",
    "ScoreInterval",
    "Scores",
    "ServedAgent",
    "SpanKind",
    "SpanRecorder",
    "Status",
    "StepPartTimes",
    "StepParts",
    "StepResult",
    "SystemRequest",
    "TargetImage",
    "TargetValues",
    "TaskMetric",
    "TaskPostprocessor",
    "TaskResult",
    "Tensor",
    "Tensors",
    "Texts",
    "TokenizedText",
    "TopAccuracy",
    "TraceLevel",
    "Trainer",
    "TrainerOptions",
    "Training",
    "TrainingArguments",
    "TrainingBatch",
    "TrainingError",
    "TrainingMeasurement",
    "Url",
    "Values",
    "Weights",
    "WorkloadRun",
    "__version__",
    "benchmark_operators",
    "bootstrap_interval",
    "check_options",
    "compare",
    "declared",
    "describe",
    "evaluate",
    "evaluations",
    "given_options",
    "ingest",
    "max_qps",
    "measure",
    "score",
    "serve",
    "sweep",
    "top_figures",
    "train",
    "workload",
]

_OWNERS = {
    "evaluators.jobs.ranges": ("Range",),
    "client.library.measuring": ("measure",),
    "evaluators.jobs.declaring": ("check_options", "declared", "given_options"),
    "evaluators.comparing.times": ("RunTimes",),
    "evaluators.jobs.requests": ("SystemRequest",),
    "evaluators.kinds.kind": ("Kind", "top_figures"),
    "evaluators.running.resources": ("JobCallbacks", "JobResources", "JobStart"),
    "evaluators.running.job": ("Job",),
    "agent": ("__version__",),
    "agent.artifacts.model_files": ("Artifacts",),
    "agent.artifacts.signature": ("InputSignature", "ModelSignature"),
    "agent.hardware.device": ("Device", "DeviceKind"),
    "agent.hardware.environment": ("FrameworkDetails",),
    "agent.inference.predictor": ("Precision", "Predictor", "PredictorOptions", "Tensors", "Weights"),
    "agent.inference.registry": ("FrameworkEntry",),
    "agent.preprocessing.inputs": ("EncodedImage", "Pixels", "Tensor", "Url"),
    "agent.preprocessing.origins": (
        "ImageGeometry",
        "TokenizedText",
    ),
    "agent.tasks.postprocessing": (
        "PredictedInputs",
        "TaskPostprocessor",
    ),
    "agent.tasks.predictions": (
        "ClassMaps",
        "Classifications",
        "Detections",
        "Images",
        "Instances",
        "Predictions",
        "Texts",
        "Values",
    ),
    "evaluators.datasets.truths": (
        "AcceptedAnswers",
        "ClassMap",
        "Objects",
        "Polygons",
        "RunLengths",
        "TargetImage",
        "TargetValues",
    ),
    "evaluators.tasks.bootstrap": ("bootstrap_interval",),
    "evaluators.tasks.metric": ("TaskMetric",),
    "evaluators.tasks.scores": (
        "Score",
        "ScoreInterval",
        "TaskResult",
    ),
    "agent.tracing.profiler": ("LayerWriter", "PredictWindow", "Profiler"),
    "agent.tracing.recorder": ("SpanRecorder",),
    "agent.tracing.span": ("SpanKind", "TraceLevel"),
    "agent.training.trainer": (
        "OptimizerOptions",
        "PlacedBatch",
        "Rank",
        "StepParts",
        "StepResult",
        "Trainer",
        "TrainerOptions",
        "TrainingBatch",
    ),
    "client.library.comparing": ("Comparison", "compare"),
    "client.library.evaluating": ("evaluate", "sweep"),
    "client.library.load": (
        "LatencyPercentile",
        "LoadArguments",
        "RateSearch",
        "WorkloadRun",
        "max_qps",
        "workload",
    ),
    "client.library.runs": ("Latency", "Run", "Runs", "TopAccuracy"),
    "client.serving.from_python": ("ServedAgent", "serve"),
    "client.library.stored": ("Evaluations", "evaluations"),
    "client.library.tables": ("Rows",),
    "client.library.benchmarks": ("DataArguments", "TrainingArguments", "ingest", "train"),
    "client.library.trainings": ("Ingestion", "StepPartTimes", "Training"),
    "client.library.operator_runs": (
        "OperatorArguments",
        "OperatorRun",
        "OperatorRuns",
        "benchmark_operators",
    ),
    "client.score.from_python": ("Scores", "score"),
    "evaluators.datasets.base": ("Dataset", "DatasetIdentity", "Sample"),
    "evaluators.evaluation": ("Evaluation", "Status"),
    "evaluators.kinds.batches.measurement": ("BatchMeasurement",),
    "evaluators.kinds.ingestion.measurement": ("IngestionMeasurement",),
    "evaluators.kinds.load.measurement": ("LoadMeasurement",),
    "evaluators.kinds.operators.measurement": ("OperatorMeasurement",),
    "evaluators.kinds.rate_search.measurement": ("RateSearchMeasurement",),
    "evaluators.kinds.training.measurement": ("TrainingMeasurement",),
    "evaluators.reports.base": ("Column", "Report", "Row", "describe"),
    "manifests.schema": ("Loss", "ModelManifest", "ModelOutput"),
}

if not TYPE_CHECKING:  # a type checker reads the imports above, and reports a name that is not there

    def __getattr__(name: str) -> object:
        """Imports a public name when it is first used."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        owner = next((module for module, names in _OWNERS.items() if name in names), "manifests.errors")
        value = globals()[name] = getattr(import_module(f"{__name__}.{owner}"), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
