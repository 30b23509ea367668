"""Element-wise arithmetic in MXNet."""

from __future__ import annotations

from collections.abc import Mapping

from inferometer.agent.frameworks.mxnet.operators.functions import Form

FUNCTIONS: Mapping[str, Form] = {
    "add": Form("elemwise_add", lambda mx, _: mx.elemwise_add),
}
MISSING: Mapping[str, str] = {}
