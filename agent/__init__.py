"""One framework agent: predictors, pre- and postprocessing, artifacts, hardware facts and the gRPC server.

Knows of no dataset, database or report.
"""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("inferscope")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+unknown"
