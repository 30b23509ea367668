"""Click commands with the manners of the original: its boolean flags, and global flags in any place."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from client.global_flags import ON_COMMAND_LINE

_Function = TypeVar("_Function", bound=Callable[..., Any])


class _Boolean(click.types.BoolParamType):
    """True or false. An empty value, as a variable of a script that is not set gives it, is neither."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> bool:
        """Returns the value as a boolean."""
        reason = f'"{value}" is no boolean; give true or false'
        if isinstance(value, str) and not value.strip():
            self.fail(reason, param, ctx)
        try:
            return bool(super().convert(value, param, ctx))
        except click.BadParameter as error:
            raise click.BadParameter(reason, ctx, param) from error


class BooleanOption(click.Option):
    """An option that takes ``--gpu``, ``--gpu=true`` and ``--gpu=false``, and never the word after it."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **{"type": _Boolean(), "default": False, **settings})

    def get_help_record(self, ctx: click.Context) -> tuple[str, str]:
        """The option's name and help, as a flag's."""
        names = ", ".join(sorted(self.opts, key=lambda name: name.startswith("--")))
        return names, (self.help or "") + ("  [default: true]" if self.default is True else "")


def boolean(*names: str, help: str, default: bool | None = False) -> Callable[[_Function], _Function]:  # noqa: A002
    """Adds a ``BooleanOption`` to a command; with the default None, an option left out is None."""
    return click.option(*names, cls=BooleanOption, default=default, help=help)


def database_options(function: _Function) -> _Function:
    """Adds the options that choose a database: ``database_address`` and ``database_name``."""
    address = click.option(
        "--database_address",
        envvar="AGENT_DATABASE_ADDRESS",
        show_envvar=True,
        metavar="ADDRESS",
        help="MongoDB: host, host:port or mongodb://….  [default: a local file]",
    )
    name = click.option("--database_name", metavar="NAME", help="Database.  [default: inferscope]")
    return address(name(function))


def _remember(context: click.Context, parameter: click.Parameter, value: object) -> None:
    """Keeps a global flag for the whole call, if it was given here; the command line goes before the rest."""
    source = context.get_parameter_source(str(parameter.name))
    if source is ParameterSource.COMMANDLINE:
        flags = context.ensure_object(dict)
        flags[parameter.name] = value
        flags.setdefault(ON_COMMAND_LINE, set()).add(parameter.name)
    elif source is ParameterSource.ENVIRONMENT:
        context.ensure_object(dict).setdefault(parameter.name, value)


def _global_options() -> list[click.Option]:
    """The flags that every command takes."""

    def option(*names: str, **settings: Any) -> click.Option:
        return click.Option([*names], expose_value=False, callback=_remember, **settings)

    def flag(*names: str, help: str) -> click.Option:  # noqa: A002 - click's own name
        return BooleanOption([*names], expose_value=False, callback=_remember, help=help)

    manifests = {"multiple": True, "type": click.Path(), "envvar": "AGENT_MANIFESTS"}
    return [
        option("--config", metavar="FILE", help="Configuration file."),
        option("--manifests", metavar="DIR", help="Directory of your own manifests.", **manifests),
        option("-s", "--secret", metavar="TEXT", envvar="AGENT_SECRET", help="Secret of a served agent."),
        option(
            "--secret_file",
            metavar="FILE",
            envvar="AGENT_SECRET_FILE",
            help="File that holds the secret, where --secret does not say it.",
        ),
        flag("-l", "--local", help="Listen on the local address only."),
        flag("--profile", help="Profile this command and write the profile to a file."),
        flag("-v", "--verbose", help="Say more of what is done."),
        flag("-d", "--debug", help="Say everything, with tracebacks."),
    ]


def _write_options(command: click.Command, context: click.Context, formatter: click.HelpFormatter) -> None:
    """Writes a command's own options, then the global ones under a heading of their own."""
    own: list[tuple[str, str]] = []
    shared: list[tuple[str, str]] = []
    for parameter in command.get_params(context):
        if record := parameter.get_help_record(context):
            (own if parameter.expose_value or parameter.is_eager else shared).append(record)
    for heading, records in (("Options", own), ("Global options", shared)):
        if records:
            with formatter.section(heading):
                formatter.write_dl(records)


class Command(click.Command):
    """A command that takes the global flags, and bare booleans as the original does."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.params += _global_options()

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses the arguments after giving bare boolean flags their value."""
        return super().parse_args(ctx, _with_values(self, ctx, args))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the options into the help."""
        _write_options(self, ctx, formatter)

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command, under a profiler if that was asked for."""
        if (ctx.obj or {}).get("profile"):
            from client.profiling import profiled

            return profiled(ctx.command_path, lambda: super(Command, self).invoke(ctx))
        return super().invoke(ctx)


class Group(click.Group):
    """A group that imports a subcommand only when it is run or its help is asked for.

    Args:
        lazy: The subcommands by name: where each is, as ``"module:function"``, and its line in the help.
        aliases: Other names of subcommands.
    """

    def __init__(
        self,
        *args: Any,
        lazy: Mapping[str, tuple[str, str]] | None = None,
        aliases: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(*args, **settings)
        self.params += _global_options()
        self._lazy = dict(lazy or {})
        self._aliases = dict(aliases or {})

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses the arguments after giving bare boolean flags their value."""
        return super().parse_args(ctx, _with_values(self, ctx, args))

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of the subcommands."""
        return sorted({*super().list_commands(ctx), *self._lazy})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Imports and returns a subcommand."""
        cmd_name = self._aliases.get(cmd_name, cmd_name)
        if cmd_name not in self._lazy:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = self._lazy[cmd_name][0].partition(":")
        command = getattr(import_module(module), attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{module}:{attribute} is no command")
        return command

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the options and the subcommands into the help."""
        _write_options(self, ctx, formatter)
        self.format_commands(ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Lists the subcommands without importing them."""
        rows = []
        for name in self.list_commands(ctx):
            if name in self._lazy:
                rows.append((name, self._lazy[name][1]))
            elif command := self.get_command(ctx, name):
                rows.append((name, command.get_short_help_str(limit=80)))
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def _with_values(command: click.Command, ctx: click.Context, args: Sequence[str]) -> list[str]:
    """Writes bare booleans as ``--name=true`` or ``-ntrue``, so that they do not take the next word.

    Booleans of one letter may stand together, and before another option: ``-vd``, ``-vb 16``. What belongs to
    another option, or to a subcommand, stays as it is.
    """
    options = {name: p for p in command.get_params(ctx) if isinstance(p, click.Option) for name in p.opts}
    words = iter(args)
    result: list[str] = []
    for word in words:
        if word == "--" or (word[:1] != "-" and not command.allow_interspersed_args):
            return [*result, word, *words]
        pieces = _pieces(word, options) if word[:1] == "-" != word[1:2] else [word]
        result += pieces
        last = options.get(pieces[-1])
        if isinstance(last, BooleanOption):
            result[-1] += "=true" if pieces[-1].startswith("--") else "true"
        elif last is not None and not last.is_flag:
            result += itertools.islice(words, 1)
    return result


def _pieces(word: str, options: Mapping[str, click.Option]) -> list[str]:
    """Takes options of one letter that stand together apart; all but the last are done with."""
    pieces: list[str] = []
    rest = word[1:]
    while rest:
        option = options.get(f"-{rest[0]}")
        if isinstance(option, BooleanOption) and rest[1:2] == "=":
            return [*pieces, f"-{rest[0]}{rest[2:] or '='}"]
        if option is None or not (isinstance(option, BooleanOption) or option.is_flag) or len(rest) == 1:
            return [*pieces, f"-{rest}"]
        pieces.append(f"-{rest[0]}" + ("true" if isinstance(option, BooleanOption) else ""))
        rest = rest[1:]
    return [word]
