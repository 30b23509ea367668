"""Measures how fast and how well machine-learning models run, and where the time goes.

Plug-ins and scripts import the names in ``__all__``, which stay stable while the modules behind them move.
Each name is imported on first use: ``import inferometer`` loads no framework, no NumPy, no gRPC and no
database. docs/plugins.md describes the names.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inferometer.agent import __version__
    from inferometer.agent.artifacts.files import Artifacts, InputSignature, ModelSignature
    from inferometer.agent.hardware.environment import (
        Device,
        DeviceKind,
        FrameworkDetails,
        Precision,
        PredictorOptions,
        Weights,
    )
    from inferometer.agent.inference.predictor import Predictor
    from inferometer.agent.inference.registry import FrameworkEntry
    from inferometer.agent.preprocessing.inputs import (
        EncodedImage,
        ImageGeometry,
        Pixels,
        Tensor,
        Tensors,
        TokenizedText,
        Url,
    )
    from inferometer.agent.tasks.predictions import (
        Classifications,
        ClassMaps,
        Detections,
        Images,
        Instances,
        PredictedInputs,
        Predictions,
        TaskPostprocessor,
        Texts,
        Values,
    )
    from inferometer.agent.tracing.recorder import (
        LayerWriter,
        PredictWindow,
        Profiler,
        SpanKind,
        SpanRecorder,
        TraceLevel,
    )
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
    from inferometer.client.api.arguments import (
        EvaluateArguments,
        LoadArguments,
        MaxQpsArguments,
        ScoreArguments,
        SharedArguments,
        SweepArguments,
        WorkloadArguments,
    )
    from inferometer.client.api.evaluating import (
        DataArguments,
        IngestionArguments,
        TrainingArguments,
        evaluate,
        ingest,
        measure,
        measure_group,
        score,
        sweep,
        train,
    )
    from inferometer.client.api.load import LatencyPercentile, RateSearch, WorkloadRun, max_qps, workload
    from inferometer.client.api.operators.runs import (
        OperatorArguments,
        OperatorRun,
        OperatorRuns,
        benchmark_operators,
    )
    from inferometer.client.api.results import Comparison, Evaluations, Rows, compare, evaluations
    from inferometer.client.api.runs import (
        Ingestion,
        Latency,
        Run,
        Runs,
        Scores,
        StepPartTimes,
        TopAccuracy,
        Training,
    )
    from inferometer.client.serving.from_python import ServedAgent, serve
    from inferometer.evaluators.datasets.base import (
        AcceptedAnswers,
        ClassMap,
        ClassNames,
        Dataset,
        DatasetIdentity,
        Objects,
        Polygons,
        RunLengths,
        Sample,
        TargetImage,
        TargetValues,
    )
    from inferometer.evaluators.evaluation import Evaluation, Status
    from inferometer.evaluators.jobs.job import Job, JobCallbacks, JobResources, JobStart, SystemRequest
    from inferometer.evaluators.jobs.options import Range, check_options, declared, given_options
    from inferometer.evaluators.kinds.batches.measurement import BatchMeasurement
    from inferometer.evaluators.kinds.ingestion.kind import IngestionMeasurement
    from inferometer.evaluators.kinds.kind import Kind, top_figures
    from inferometer.evaluators.kinds.load.measurement import (
        LoadMeasurement,
        MixMeasurement,
        RateSearchMeasurement,
    )
    from inferometer.evaluators.kinds.operators.measurement import OperatorMeasurement
    from inferometer.evaluators.kinds.training.measurement import TrainingMeasurement
    from inferometer.evaluators.reports.base import Column, Report, Row, describe
    from inferometer.evaluators.score_intervals import ScoreInterval, bootstrap_interval
    from inferometer.evaluators.tasks.metric import Score, TaskMetric, TaskResult
    from inferometer.evaluators.verdict import RunTimes
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
    "ClassNames",
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
    "EvaluateArguments",
    "Evaluation",
    "Evaluations",
    "FrameworkDetails",
    "FrameworkEntry",
    "ImageGeometry",
    "Images",
    "InferometerError",
    "Ingestion",
    "IngestionArguments",
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
    "MaxQpsArguments",
    "MixMeasurement",
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
    "ScoreArguments",
    "ScoreInterval",
    "Scores",
    "ServedAgent",
    "SharedArguments",
    "SpanKind",
    "SpanRecorder",
    "Status",
    "StepPartTimes",
    "StepParts",
    "StepResult",
    "SweepArguments",
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
    "WorkloadArguments",
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
    "measure_group",
    "score",
    "serve",
    "sweep",
    "top_figures",
    "train",
    "workload",
]

_OWNERS = {
    "evaluators.jobs.options": "Range check_options declared given_options",
    "client.api.evaluating": (
        "DataArguments IngestionArguments TrainingArguments evaluate ingest measure measure_group score "
        "sweep train"
    ),
    "evaluators.verdict": "RunTimes",
    "evaluators.jobs.job": "SystemRequest JobCallbacks JobResources JobStart Job",
    "evaluators.kinds.kind": "Kind top_figures",
    "agent": "__version__",
    "agent.artifacts.files": "Artifacts InputSignature ModelSignature",
    "agent.hardware.environment": "Device DeviceKind FrameworkDetails Precision PredictorOptions Weights",
    "agent.inference.predictor": "Predictor",
    "agent.inference.registry": "FrameworkEntry",
    "agent.preprocessing.inputs": "EncodedImage Pixels Tensor Tensors Url ImageGeometry TokenizedText",
    "agent.tasks.predictions": (
        "PredictedInputs TaskPostprocessor ClassMaps Classifications Detections Images Instances "
        "Predictions Texts Values"
    ),
    "evaluators.datasets.base": (
        "AcceptedAnswers ClassMap ClassNames Objects Polygons RunLengths TargetImage TargetValues Dataset "
        "DatasetIdentity Sample"
    ),
    "evaluators.score_intervals": "bootstrap_interval ScoreInterval",
    "evaluators.tasks.metric": "TaskMetric Score TaskResult",
    "agent.tracing.recorder": "LayerWriter PredictWindow Profiler SpanRecorder SpanKind TraceLevel",
    "agent.training.trainer": (
        "OptimizerOptions PlacedBatch Rank StepParts StepResult Trainer TrainerOptions TrainingBatch"
    ),
    "client.api.results": "Comparison compare Evaluations evaluations Rows",
    "client.api.arguments": (
        "EvaluateArguments LoadArguments MaxQpsArguments ScoreArguments SharedArguments SweepArguments "
        "WorkloadArguments"
    ),
    "client.api.load": "LatencyPercentile RateSearch WorkloadRun max_qps workload",
    "client.api.runs": "Ingestion Latency Run Runs Scores StepPartTimes TopAccuracy Training",
    "client.serving.from_python": "ServedAgent serve",
    "client.api.operators.runs": "OperatorArguments OperatorRun OperatorRuns benchmark_operators",
    "evaluators.evaluation": "Evaluation Status",
    "evaluators.kinds.batches.measurement": "BatchMeasurement",
    "evaluators.kinds.ingestion.kind": "IngestionMeasurement",
    "evaluators.kinds.load.measurement": "LoadMeasurement MixMeasurement RateSearchMeasurement",
    "evaluators.kinds.operators.measurement": "OperatorMeasurement",
    "evaluators.kinds.training.measurement": "TrainingMeasurement",
    "evaluators.reports.base": "Column Report Row describe",
    "manifests.schema": "Loss ModelManifest ModelOutput",
}
"""The modules that contain the public names; ``manifests.errors`` has the others."""

if not TYPE_CHECKING:  # a type checker reads the imports above, and reports a name that is not there

    def __getattr__(name: str) -> object:
        """Imports a public name on first use."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        owner = next(
            (module for module, names in _OWNERS.items() if name in names.split()), "manifests.errors"
        )
        value = globals()[name] = getattr(import_module(f"{__name__}.{owner}"), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
