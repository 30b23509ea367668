"""The columns that every report of evaluations begins with, and their values."""

from __future__ import annotations

from datetime import timezone

from evaluators.evaluation import Evaluation
from evaluators.reports.base import Column, Row

EVALUATION_COLUMNS = (
    Column("id", "id"),
    Column("created_at", "created at"),
    Column("model_name", "model"),
    Column("model_version", "model version"),
    Column("framework_name", "framework"),
    Column("framework_version", "framework version"),
    Column("machine_architecture", "architecture"),
    Column("using_gpu", "GPU"),
    Column("batch_size", "batch size"),
    Column("hostname", "host"),
    Column("weights", "weights"),
)
STATUS_COLUMN = Column("status", "status")


def describe(evaluation: Evaluation) -> Row:
    """Returns the values of ``EVALUATION_COLUMNS`` and ``STATUS_COLUMN``.

    ``created_at`` is ISO 8601 in UTC with milliseconds; ``framework_version`` is the installed version,
    not the manifest's constraint.
    """
    system = evaluation.system
    return {
        "id": evaluation.id,
        "created_at": evaluation.created_at.astimezone(timezone.utc).isoformat(timespec="milliseconds"),
        "model_name": system.manifest.name,
        "model_version": system.manifest.version,
        "framework_name": system.manifest.framework.name,
        "framework_version": system.framework_version,
        "machine_architecture": system.environment.architecture,
        "using_gpu": system.device.is_gpu,
        "batch_size": evaluation.options.batch_size,
        "hostname": system.environment.hostname,
        "weights": system.weights.value,
        "status": evaluation.status.value,
    }
