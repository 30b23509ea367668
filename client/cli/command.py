"""Click commands and options: boolean flags with or without a value, global flags in any position, files.

Also provides the invocation of the command that is running.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from inferometer.agent.hardware.allocator import VARIABLE, Allocator, use_allocator
from inferometer.client.api.invocation import INVOCATION, ON_COMMAND_LINE, VARIABLES, Invocation, set_logging
from inferometer.client.cli.completing import OPTIONS, evaluations
from inferometer.manifests.errors import OutputError, explained

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


FILE = click.Path(path_type=Path)
"""The type of options that name a file."""


class InputPath(click.Path):
    """The type of options that name a file or a folder that the command reads."""


INPUT = InputPath(path_type=Path)
"""The same type without checks; the command itself reports what is wrong with a file."""


def current_invocation() -> Invocation:
    """Returns the invocation of the running command, and sets up logging according to its flags.

    Must be called from within a command; all calls within it return the same object.
    """
    flags: dict[str, Any] = click.get_current_context().ensure_object(dict)
    if INVOCATION not in flags:
        set_logging(flags)
        flags[INVOCATION] = Invocation(flags)
    invocation: Invocation = flags[INVOCATION]
    return invocation


class FiniteFloatRange(click.FloatRange):
    """A finite number within a range: rejects ``nan`` and ``inf``, which pass click's own checks."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Returns the value as a number."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return number


def counts(value: Any) -> tuple[int, ...]:
    """Converts the value of an option: positive integers, separated by commas, without duplicates."""
    if isinstance(value, tuple):
        return value
    try:
        numbers = tuple(int(part) for part in str(value).split(","))
    except ValueError as error:
        raise click.BadParameter(
            f"{value} is not a number; write one, or several separated by commas"
        ) from error
    for number in numbers:
        if number < 1:
            raise click.BadParameter(f"{number} is not in the range x>=1.")
        if numbers.count(number) > 1:
            raise click.BadParameter(f"{value} names {number} twice; leave out one")
    return numbers


def tensor_shape(value: Any) -> tuple[int, ...]:
    """Converts the value of an option: the sizes of a tensor, separated by commas or ``x``."""
    if isinstance(value, tuple):
        return value
    parts = str(value).replace("x", ",").split(",")
    if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise click.BadParameter(f"{value} is not a shape; separate sizes by commas, such as 3,224,224")
    return tuple(map(int, parts))


_Result = TypeVar("_Result")


def profiled(name: str, function: Callable[[], _Result]) -> _Result:
    """Runs ``function`` under Python's profiler and writes a file that ``python -m pstats`` opens.

    Raises:
        OutputError: The file cannot be written.
    """
    import cProfile

    profile = cProfile.Profile()
    directory = current_invocation().data_directory / "profiles"
    path = directory / f"{name.replace(' ', '-')}-{os.getpid()}.prof"
    try:
        return profile.runcall(function)
    finally:
        with explained(OutputError, f"the profile cannot be written to {path}"):
            directory.mkdir(parents=True, exist_ok=True)
            profile.dump_stats(path)
        click.echo(f"profile: {path} (python -m pstats {path})", err=True)


COMPLETION_VARIABLE = "_AGENT_COMPLETE"
"""The environment variable through which a shell's script requests completions."""
_Function = TypeVar("_Function", bound=Callable[..., Any])


class _Boolean(click.types.BoolParamType):
    """True or false. Rejects an empty value, which a script passes if a variable is unset."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> bool:
        reason = f'"{value}" is not a boolean; use true or false'
        if isinstance(value, str) and not value.strip():
            self.fail(reason, param, ctx)
        try:
            return bool(super().convert(value, param, ctx))
        except click.BadParameter as error:
            raise click.BadParameter(reason, ctx, param) from error


class HeadedOption(click.Option):
    """An option that the help lists under the heading of its group; without one, under ``Options``."""

    heading = ""


class BooleanOption(HeadedOption):
    """An option that accepts ``--gpu``, ``--gpu=true`` and ``--gpu=false``, but not ``--gpu false``."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **{"type": _Boolean(), "default": False, **settings})

    def get_help_record(self, ctx: click.Context) -> tuple[str, str]:
        """Returns the option's name and help text in the form of a flag."""
        names = ", ".join(sorted(self.opts, key=lambda name: name.startswith("--")))
        return names, (self.help or "") + ("  [default: true]" if self.default is True else "")


def boolean(*names: str, help: str, default: bool | None = False) -> Callable[[_Function], _Function]:  # noqa: A002
    """Adds a ``BooleanOption`` to a command; a default of None lets the command detect its absence."""
    return click.option(*names, cls=BooleanOption, default=default, help=help)


def _parameters(function: Any) -> list[Any]:
    """Returns the parameters that decorators have added to a command, or to the function of one."""
    made = isinstance(function, click.Command)
    return function.params if made else getattr(function, "__click_params__", [])


def options(*decorators: Callable[[Any], Any], heading: str = "") -> Callable[[_Function], _Function]:
    """Returns a decorator that adds several options to a command; the help lists them in this order.

    The help shows ``heading`` above those options that have no heading of their own.
    """

    def decorate(function: _Function) -> _Function:
        before = len(_parameters(function))
        for decorator in decorators if isinstance(function, click.Command) else reversed(decorators):
            function = decorator(function)
        for added in _parameters(function)[before:]:
            added.heading = getattr(added, "heading", "") or heading
        return function

    return decorate


COUNT = click.IntRange(min=1)
WHOLE_NUMBER = click.IntRange(min=0)
PORT = click.IntRange(0, 65535)
SEED = click.IntRange(0, 2**63 - 1)
WEIGHTS = click.Choice(["pretrained", "random"], case_sensitive=False)
POSITIVE = FiniteFloatRange(min=0, min_open=True)
NOT_NEGATIVE = FiniteFloatRange(min=0)


def option(*names: str, help: str, **settings: Any) -> Callable[[_Function], _Function]:  # noqa: A002
    """Adds an option to a command; the help shows its default, and shells complete its values if known."""
    defaults = {"show_default": True, "shell_complete": OPTIONS.get(names[0])}
    return click.option(*names, cls=HeadedOption, help=help, **{**defaults, **settings})


def evaluations_argument(name: str, **settings: Any) -> Callable[[_Function], _Function]:
    """Adds an argument for one evaluation id, or several separated by commas; shells complete the ids."""
    return click.argument(name, shell_complete=evaluations, **settings)


def format_option(
    *names: str,
    help: str = "Output format.",  # noqa: A002
    flags: Sequence[str] = ("-f", "--format"),
) -> Callable[[_Function], _Function]:
    """Adds ``-f``, passed as ``format_name``: one of ``names``, ignoring case; the first is the default."""
    kind = click.Choice(names, case_sensitive=False)
    return option(*flags, "format_name", type=kind, default=names[0], help=help)


def _keep(context: click.Context, parameter: click.Parameter, value: object) -> None:
    """Stores the value of an option in the context, where ``Invocation`` reads it instead of the command."""
    context.ensure_object(dict)[parameter.name] = value


def _kept(name: str, metavar: str, help: str) -> Callable[[Any], Any]:  # noqa: A002
    kind = click.Path() if metavar == "FILE" else None
    settings = {"envvar": VARIABLES.get(name), "show_envvar": True, "expose_value": False, "callback": _keep}
    return option(f"--{name}", type=kind, metavar=metavar, help=help, **settings)


MODEL, DATA, MEASUREMENT, OUTPUT = "Model and device", "Data", "Measurement", "Output"
_OPTIONS, _AGENTS, _GLOBAL = "Options", "Connections to agents", "Global options"
OPERATORS = "Operators"
_HEADINGS = (_OPTIONS, MODEL, OPERATORS, DATA, MEASUREMENT, "", OUTPUT, _AGENTS, _GLOBAL)
"""The headings of the groups of options, in the order of the help; the empty one stands for all others."""
database_options = options(
    _kept("database_address", "ADDRESS", "MongoDB: host, host:port or mongodb://….  [default: a local file]"),
    _kept("database_name", "NAME", "Database.  [default: inferometer]"),
)
"""Adds the options that choose a database, for ``Invocation.open_store``."""
tls_options = options(
    _kept("tls_ca", "FILE", "Use TLS, and trust agents with a certificate from these authorities."),
    _kept("tls_cert", "FILE", "Client certificate, for agents that require one."),
    _kept("tls_key", "FILE", "Key of the client certificate."),
    _kept(
        "tls_server_name", "NAME", "Host name in the agent's certificate.  [default: the host of its address]"
    ),
    heading=_AGENTS,
)
"""Adds the TLS options for connections to agents, for ``Invocation.agent_tls``."""


def _remember(context: click.Context, parameter: click.Parameter, value: object) -> None:
    """Stores a global flag for the whole invocation. The command line overrides the environment."""
    source = context.get_parameter_source(str(parameter.name))
    if source is ParameterSource.COMMANDLINE:
        flags = context.ensure_object(dict)
        flags[parameter.name] = value
        flags.setdefault(ON_COMMAND_LINE, set()).add(parameter.name)
    elif source is ParameterSource.ENVIRONMENT:
        context.ensure_object(dict).setdefault(parameter.name, value)


def is_global(parameter: click.Parameter) -> bool:
    """Returns whether a parameter is one of the flags that every command accepts."""
    return parameter.callback is _remember


def grouped(command: click.Command, ctx: click.Context) -> Mapping[str, Sequence[click.Parameter]]:
    """Returns the parameters that a command's help lists, by heading, both in the order of the help."""
    groups: dict[str, list[click.Parameter]] = {}
    for parameter in command.get_params(ctx):
        if isinstance(parameter, click.Option) and parameter.get_help_record(ctx):
            everywhere = is_global(parameter) or "--help" in parameter.opts
            heading = _GLOBAL if everywhere else getattr(parameter, "heading", "") or _OPTIONS
            groups.setdefault(heading, []).append(parameter)
    place = {heading: place for place, heading in enumerate(_HEADINGS)}
    return {
        heading: groups[heading] for heading in sorted(groups, key=lambda each: place.get(each, place[""]))
    }


def _global_options() -> list[click.Option]:

    def text(*names: str, **settings: Any) -> click.Option:
        return click.Option([*names], expose_value=False, callback=_remember, **settings)

    def flag(*names: str, help: str) -> click.Option:  # noqa: A002 - click's own name
        return BooleanOption([*names], expose_value=False, callback=_remember, help=help)

    file_help = "File with the secret; --secret takes precedence."
    manifests = {"multiple": True, "type": click.Path(), "envvar": "AGENT_MANIFESTS"}
    return [
        text("--config", metavar="FILE", help="Configuration file."),
        text("--manifests", metavar="DIR", help="Directory of your own manifests.", **manifests),
        text("-s", "--secret", metavar="TEXT", envvar="AGENT_SECRET", help="Secret of a served agent."),
        text("--secret_file", metavar="FILE", envvar="AGENT_SECRET_FILE", help=file_help),
        flag("-l", "--local", help="Listen on the loopback address only."),
        flag("--profile", help="Profile this command and write the profile to a file."),
        flag("-v", "--verbose", help="Log more details."),
        flag("-d", "--debug", help="Log everything, with tracebacks."),
    ]


class _GlobalFlags(click.Command):
    """The base class of commands and groups: adds the global flags, and accepts bare boolean flags."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.params += _global_options()

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses the arguments after adding a value to each bare boolean flag."""
        return super().parse_args(ctx, _with_values(self, ctx, args))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the command's own options, each group under its heading, and then the global options."""
        for heading, parameters in grouped(self, ctx).items():
            with formatter.section(heading):
                formatter.write_dl([each.get_help_record(ctx) or ("", "") for each in parameters])


class Command(_GlobalFlags):
    """A command that accepts the global flags, and boolean flags without a value."""

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command with the allocator of ``--allocator``; with ``--profile``, under the profiler."""
        if allocator := ctx.params.pop("allocator", None):
            use_allocator(Allocator(allocator.lower()))
        if (ctx.obj or {}).get("profile"):
            return profiled(ctx.command_path, lambda: super(Command, self).invoke(ctx))
        return super().invoke(ctx)


def allocator_option(whose: str = "") -> Callable[[Any], Any]:
    """Adds the option ``allocator``, which ``Command.invoke`` consumes; the help text ends with ``whose``."""
    return option(
        "--allocator",
        type=click.Choice([each.value for each in Allocator], case_sensitive=False),
        default=Allocator.DEFAULT.value,
        envvar=VARIABLE,
        show_envvar=True,
        help="Memory of the process: the libraries' default; keep what is freed; or exact, which takes only "
        f"what is in use.{whose}",
    )


class Group(_GlobalFlags, click.Group):
    """A group that imports a subcommand only when it runs or when its help is shown.

    A subcommand is ``lazy`` by its location ``"module:function"`` and its line in the help.
    """

    def __init__(
        self,
        *args: Any,
        lazy: Mapping[str, tuple[str, str]] | None = None,
        aliases: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(*args, **settings)
        self._lazy = dict(lazy or {})
        self._aliases = dict(aliases or {})

    def with_default(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Returns the arguments; a group with a default subcommand adds it if they name none."""
        return args

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Returns the names of the subcommands."""
        return sorted({*super().list_commands(ctx), *self._lazy})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Imports and returns a subcommand."""
        cmd_name = self._aliases.get(cmd_name, cmd_name)
        if cmd_name not in self._lazy:
            return super().get_command(ctx, cmd_name)
        command = resolve_name(self._lazy[cmd_name][0])
        if not isinstance(command, click.Command):
            raise TypeError(f"{self._lazy[cmd_name][0]} is not a command")
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Completes the names of the subcommands without importing them, and the group's options."""
        from click.shell_completion import CompletionItem

        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        found = [CompletionItem(name, help=self._lazy.get(name, ("", None))[1]) for name in names]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the options and the subcommands into the help."""
        super().format_options(ctx, formatter)
        self.format_commands(ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Lists the subcommands without importing them."""
        rows = []
        for name in self.list_commands(ctx):
            if name in self._lazy:
                rows.append((name, self._lazy[name][1]))
            elif command := self.get_command(ctx, name):
                rows.append((name, command.get_short_help_str(limit=80)))
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


def _with_values(command: click.Command, ctx: click.Context, args: Sequence[str]) -> list[str]:
    """Rewrites bare booleans as ``--name=true`` or ``-ntrue``, so that they do not consume the next word.

    Long names may contain hyphens instead of underscores. One-letter booleans can be combined, also before
    another option: ``-vd``, ``-vb 16``. The values of other options and the arguments of a subcommand stay
    unchanged.
    """
    options = {name: p for p in command.get_params(ctx) if isinstance(p, click.Option) for name in p.opts}
    words = iter(args)
    result: list[str] = []
    for word in words:
        if word == "--" or (word[:1] != "-" and not command.allow_interspersed_args):
            return [*result, word, *words]
        pieces = _pieces(word, options) if word[:1] == "-" != word[1:2] else [_underscored(word, options)]
        result += pieces
        last = options.get(pieces[-1])
        if isinstance(last, BooleanOption):
            result[-1] += "=true" if pieces[-1].startswith("--") else "true"
        elif last is not None and not last.is_flag:
            result += itertools.islice(words, 1)
    return result


def _underscored(word: str, options: Mapping[str, click.Option]) -> str:
    """Rewrites ``--batch-size=8`` as ``--batch_size=8`` if only the latter is an option."""
    name, equals, value = word.partition("=")
    known = "--" + name[2:].replace("-", "_")
    return f"{known}{equals}{value}" if name not in options and known in options else word


def _pieces(word: str, options: Mapping[str, click.Option]) -> list[str]:
    """Splits combined one-letter options, and adds ``true`` to each boolean except the last."""
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
