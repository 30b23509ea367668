"""The Python function for the kinds of measurement that plug-ins add."""

from __future__ import annotations

import os
from typing import Any

from inferometer.client.api.runner import measured
from inferometer.client.library.invocation import library_invocation
from inferometer.client.library.requests import system_request
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.jobs.declaring import check_options, needs_system, options_of
from inferometer.evaluators.jobs.defaults import MODEL
from inferometer.evaluators.kinds.registry import find_kind, plugged_kinds
from inferometer.manifests.errors import ConfigurationError, suggestion


def measure(
    kind: str,
    model: str | os.PathLike[str] | object = MODEL,
    *,
    version: str | None = None,
    framework: str | None = None,
    weights: str = "pretrained",
    seed: int = 0,
    gpu: bool = False,
    threads: int | None = None,
    agent: str | None = None,
    publish: bool = True,
    **options: Any,
) -> Evaluation[Any]:
    """Measures what a plug-in's kind measures, as ``agent measure`` does, and returns the evaluation.

    Args:
        kind: The name of the kind.
        model: The name in its manifest, or a file or an object as in ``evaluate``.
        version: A version or a constraint; None means the highest that has the weights.
        framework: The framework; None means the first installed one that has the model.
        weights: ``pretrained``, or ``random`` for speed only.
        seed: The seed of random weights.
        gpu: Whether to run on the GPU.
        threads: CPU threads of an operator; None means the default.
        agent: The address of a served agent; None means this process.
        publish: Whether to store the evaluation in the configured database.
        options: Those that the request of the kind declares.

    Raises:
        ConfigurationError: There is no such kind or option, or a value is invalid.
        InferometerError: The model cannot be opened.
        StoreError: The database lost the evaluation; the message names the file that keeps it.
    """
    if kind not in plugged_kinds():
        raise ConfigurationError(f'unknown kind "{kind}"; {suggestion(kind, plugged_kinds())}')
    found = find_kind(kind)
    if found.request is None:
        raise ConfigurationError(f"kind {kind} has no request, and so no function")
    known = [each.name for each in options_of(found.request)]
    for name in options:
        if name not in known:
            raise ConfigurationError(f'unknown option "{name}" of {kind}; {suggestion(name, known)}')
    invocation = library_invocation()
    if needs_system(found.request):
        options["system"] = system_request(
            invocation,
            model,
            version=version,
            framework=framework,
            weights=weights,
            seed=seed,
            gpu=gpu,
            threads=threads,
            agent=agent,
        )
    request = found.request(**options)
    check_options(request)
    return measured(invocation, found.job(request), publish=publish)
