"""``agent info``: evaluations, agents, models, frameworks, datasets and this machine."""

from __future__ import annotations

import click

from client.command import Group


@click.group(
    cls=Group,
    lazy={
        "agents": ("client.agents.listing:agents", "List the served agents that are alive."),
        "datasets": ("client.listings:datasets", "List the datasets."),
        "evaluation": ("client.reports.commands:evaluation", "Reports on published evaluations."),
        "frameworks": ("client.listings:frameworks", "List the frameworks, installed or not."),
        "models": ("client.listings:models", "List the models, and whether they can be run."),
        "system": ("client.listings:system", "Show this machine and its software."),
    },
)
def info() -> None:
    """Reports on evaluations, agents, models, frameworks, datasets and this machine."""
