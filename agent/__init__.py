"""The framework agent: predictors, pre- and postprocessing, artifacts, hardware and the gRPC server.

Knows of no dataset, database or report.
"""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("inferometer")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+unknown"
