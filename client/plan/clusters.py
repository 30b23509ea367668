"""Applies a cluster's profile from the configuration to the jobs of a plan."""

from __future__ import annotations

from dataclasses import replace

from inferometer.client.api.cluster_profiles import profile_of
from inferometer.client.api.invocation import Invocation
from inferometer.client.plan.asking import PlanRequest
from inferometer.client.slurm.scripts import options_of, setup_of


def on_cluster(invocation: Invocation, request: PlanRequest) -> PlanRequest:
    """Returns a plan with the profile of its cluster; the plan's own options and lines take precedence.

    Raises:
        ConfigurationError: The configuration has no such cluster.
    """
    slurm = request.plan.slurm
    if slurm is None or not slurm.cluster:
        return request
    profile = profile_of(slurm.cluster, invocation.configuration.clusters)
    filled = {
        "cluster": "",
        "arguments": [*options_of(profile), *slurm.arguments],
        "setup": [*setup_of(profile), *slurm.setup],
        "python": slurm.python or str(profile.virtualenv or ""),
    }
    plan = request.plan.model_copy(update={"slurm": slurm.model_copy(update=filled)})
    return replace(request, plan=plan)
