"""``agent info``: shows evaluations, agents, models, frameworks, datasets and this machine."""

from __future__ import annotations

import click

from inferometer.client.cli.command import Group

_HERE = "inferometer.client.commands"


@click.group(
    cls=Group,
    lazy={
        "agents": (f"{_HERE}.agents:agents", "List the served agents that are alive."),
        "datasets": (f"{_HERE}.listings:datasets", "List the datasets."),
        "evaluation": (f"{_HERE}.evaluation:evaluation", "Reports on published evaluations."),
        "evaluations": (
            f"{_HERE}.evaluation:evaluations",
            "List the evaluations, the newest first, with their verdicts.",
        ),
        "frameworks": (f"{_HERE}.listings:frameworks", "List the frameworks, installed or not."),
        "models": (f"{_HERE}.listings:models", "List the models, and whether they can be run."),
        "system": (f"{_HERE}.listings:system", "Show this machine and its software."),
    },
)
def info() -> None:
    """Reports on evaluations, agents, models, frameworks, datasets and this machine."""
