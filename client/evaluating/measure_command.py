"""``agent measure``: runs the kinds of measurement that plug-ins add."""

from __future__ import annotations

from typing import Any

import click

from inferometer.client.cli.command import Command, Group, database_options, options
from inferometer.client.cli.request_options import request_options
from inferometer.client.cli.system_options import publication_options, system_options
from inferometer.evaluators.jobs.declaring import needs_system, options_of
from inferometer.evaluators.kinds.registry import every_kind, find_kind, plugged_kinds
from inferometer.manifests.errors import ConfigurationError


class _Kinds(Group):
    """A group with one command per plug-in kind; its options are those of the kind's request."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Returns the names of the kinds that can be imported and have a request."""
        plugged = plugged_kinds()
        return sorted(kind.name for kind in every_kind() if kind.name in plugged and kind.request is not None)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Lists the commands, or says that there are none."""
        super().format_commands(ctx, formatter)
        if not self.list_commands(ctx):
            formatter.write_paragraph()
            formatter.write_text(
                "No kind is installed: a plug-in adds one by the entry point inferometer.kinds."
            )

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Creates the command of a kind."""
        if cmd_name not in plugged_kinds():
            return None
        kind = find_kind(cmd_name)
        if kind.request is None:
            raise ConfigurationError(f"kind {cmd_name} has no request, and so no command")

        def run(**given: Any) -> None:
            _measure(cmd_name, given)

        documentation = type(kind).__doc__ or f"Measure {kind.phrase}."
        every = (
            system_options if needs_system(kind.request) else options(database_options, publication_options)
        )
        return click.command(cmd_name, cls=Command, help=documentation)(
            every(request_options(kind.request)(run))
        )


@click.command("measure", cls=_Kinds)
def measure() -> None:
    """Measure what a plug-in adds: each kind of measurement is a command."""


def _measure(name: str, given: dict[str, Any]) -> None:
    """Builds the request from the options, runs its job, and exits with the job's exit code."""
    # Imported here because the help does not need it.
    from inferometer.client.cli.current import current_invocation
    from inferometer.client.evaluating.parsing import take_system
    from inferometer.client.evaluating.running import run_job
    from inferometer.evaluators.datasets.choice import DatasetChoice

    invocation, kind = current_invocation(), find_kind(name)
    kept = {"publish": given.pop("publish"), "require_stable": given.pop("require_stable")}
    request: Any = kind.request
    values = {each.name: given[each.name] for each in options_of(request)}
    if needs_system(request):
        values["system"] = take_system(given, invocation, DatasetChoice())
    click.get_current_context().exit(run_job(invocation, kind.job(request(**values)), **kept))
