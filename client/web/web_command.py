"""``agent web``: evaluations as a page, live."""

from __future__ import annotations

from pathlib import Path

import click

from inferometer.agent.server.tls import ServerTls
from inferometer.client.cli.command import (
    PORT,
    Command,
    boolean,
    current_invocation,
    database_options,
    option,
)
from inferometer.client.serving.options import server_tls_options
from inferometer.manifests.errors import ConfigurationError

_LOCAL = "127.0.0.1"


@click.command(cls=Command)
@option("--host", default=_LOCAL, metavar="ADDRESS", help="Address to listen on.")
@option("--port", type=PORT, default=8051, metavar="N", help="Port to listen on; 0 chooses a free port.")
@server_tls_options
@boolean(
    "--insecure",
    help="Allow a page that others can reach to run without TLS or a secret: anyone can read it.",
)
@database_options
def web(
    host: str, port: int, tls_cert: Path | None, tls_key: Path | None, tls_ca: Path | None, insecure: bool
) -> None:
    """Serve the evaluations as a page, live, until SIGTERM or Ctrl-C.

    New evaluations appear as they are published, and running ones show their progress. The page changes
    nothing. With --secret or --secret_file, a browser asks for it, as the password of any user.
    """
    invocation = current_invocation()
    if invocation.local and host != _LOCAL:
        raise ConfigurationError(f"--local listens on {_LOCAL} only, --host says {host}; give one of them")
    try:
        from inferometer.client.web.server import PageOptions, serve_page
    except ImportError as error:
        raise ConfigurationError(
            f'the page requires {error.name}, which is not installed; pip install "inferometer[web]", or '
            "write it to a file: agent report -o report.html"
        ) from error
    options = PageOptions(
        host=host,
        port=port,
        secret=invocation.secret,
        tls=ServerTls.of(tls_cert, tls_key, tls_ca),
        insecure=insecure,
        data_directory=invocation.data_directory,
    )
    serve_page(options, invocation.open_store, lambda url: click.echo(f"page on {url}"))
