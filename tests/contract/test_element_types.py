"""Every element type through every door, in and out: what is taken is exact, the rest is one same line."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tritonclient.grpc as triton
import tritonclient.http as triton_http
from numpy.typing import NDArray
from onnx import TensorProto, helper
from tritonclient.utils import InferenceServerException, shared_memory

from inferometer.agent.inference.registry import Registry
from inferometer.agent.inference.session import SessionOptions, open_session
from inferometer.agent.inference.stages import BatchResult, StageTimes
from inferometer.agent.open_inference.codec import BF16, DATATYPES, STRINGS, converted_to, datatype_of
from inferometer.agent.preprocessing.inputs import Input, Tensor
from inferometer.agent.protocol.messages import decode_response, encode_response
from inferometer.agent.server.server import AgentServer, ServerOptions
from inferometer.agent.tasks.predictions import RawOutputs
from inferometer.client.remote.connection import RemoteOptions
from inferometer.client.remote.kserve.opening import ModelChoice, open_kserve
from inferometer.client.remote.native.agent import open_remote_agent
from inferometer.client.remote.rest.connection import HttpRequestForm
from inferometer.evaluators.evaluation import Status
from inferometer.evaluators.jobs.job import Notify, SystemRequest
from inferometer.evaluators.jobs.options import SharedMemoryUse
from inferometer.evaluators.kinds.load.job import LoadJob
from inferometer.evaluators.kinds.load.measurement import LoadMeasurement, RateSearchMeasurement
from inferometer.evaluators.kinds.load.request import MaxQpsRequest, WorkloadRequest
from inferometer.evaluators.load.arrivals import Schedule
from inferometer.evaluators.load.local_target import make_load_target
from inferometer.evaluators.load.queries import Outcome, QueryLog
from inferometer.evaluators.load.target import PreparedInputs, ReadInputs
from inferometer.manifests.catalog import Catalog
from inferometer.manifests.errors import ConfigurationError, InputError, ManifestError, PredictionError
from inferometer.manifests.inputs import TensorElementType
from inferometer.manifests.loader import load_manifest

DEADLINE_S = 30.0
VALUES: dict[str, list[list[Any]]] = {
    "bool": [[True, False, True], [False, False, True]],
    "uint8": [[0, 255, 1], [2, 3, 4]],
    "uint16": [[0, 2**16 - 1, 1], [2, 3, 4]],
    "uint32": [[0, 2**32 - 1, 1], [2, 3, 4]],
    "int8": [[-128, 127, 0], [1, 2, 3]],
    "int16": [[-(2**15), 2**15 - 1, 0], [1, 2, 3]],
    "int32": [[-(2**31), 2**31 - 1, 0], [1, 2, 3]],
    "int64": [[-(2**63), 2**63 - 1, 2**53 + 1], [1, 2, 3]],
    "float16": [[0, -1.5, 65504], [np.inf, 6e-8, np.nan]],
    "float32": [[0, -1.5, 3.25], [-np.inf, 1e-40, np.nan]],
    "float64": [[0, -1.5, 1e300], [np.inf, 5e-324, np.nan]],
    "string": [["", "Größe", "a\0b"], ["😀" * 300, "line\nline", " "]],
}
ONLY_OUT = ("uint64",)
"""Types of outputs that no manifest has for an input."""
NOT_TAKEN = ("complex128", "S3", "datetime64[s]", "V2", "<U2")
MANIFEST = """
name: {name}
framework: {{name: ONNXRuntime, version: "*"}}
inputs: [{{type: tensor, parameters: {{dimensions: [{axis}], element_type: {dtype}, input_layer: x}}}}]
output: {{type: raw}}
model: {{graph_path: {name}.onnx}}
"""
DOORS = ("here", "native", "grpc", "http", "json", "memory", "http memory")
TAKEN = [(door, dtype) for door in DOORS for dtype in VALUES if not (dtype == "string" and "memory" in door)]


def write_model(folder: Path, name: str, given: str, gives: str, axis: int = 3) -> None:
    """A model that returns its input, or casts it."""
    shape = ["batch", axis if axis > 0 else "length"]
    x, y = (
        helper.make_tensor_value_info(name, onnx_type(dtype), shape)
        for name, dtype in (("x", given), ("y", gives))
    )
    node = helper.make_node("Identity", ["x"], ["y"])
    if given != gives:
        node = helper.make_node("Cast", ["x"], ["y"], to=onnx_type(gives))
    graph = helper.make_graph([node], "same", [x], [y])
    opsets = [helper.make_opsetid("", 20)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), folder / f"{name}.onnx")
    (folder / f"{name}.yml").write_text(MANIFEST.format(name=name, dtype=given, axis=axis))


def onnx_type(dtype: str) -> int:
    if dtype in {"string", "bfloat16"}:
        return int(getattr(TensorProto, dtype.upper()))
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("identities")
    for dtype in VALUES:
        write_model(made, f"Same_{dtype}", dtype, dtype)
        write_model(made, f"Any_{dtype}", dtype, dtype, axis=-1)
    for dtype in ONLY_OUT:
        write_model(made, f"To_{dtype}", "int32", dtype)
    write_model(made, "To_bfloat16", "float32", "bfloat16")
    return made


@pytest.fixture(scope="module")
def agent(folder: Path) -> Iterator[AgentServer]:
    options = ServerOptions(port=0, http_port=0, shared_memory=True, max_sessions=100)
    with AgentServer(Catalog([folder]), Registry(), options) as started:
        yield started


@pytest.fixture(scope="module")
def opened(agent: AgentServer, folder: Path) -> Iterator[Callable[[str, str], Any]]:
    """Opens a model through a door, each once."""
    catalog = Catalog([folder])

    def kserve(url: str, name: str, use: SharedMemoryUse = SharedMemoryUse.OFF) -> Any:
        return open_kserve(url, catalog, ModelChoice(name), remote=RemoteOptions(shared_memory=use))

    def open_(door: str, name: str) -> Any:
        if door == "here":
            return open_session(catalog.find_models(name)[0], SessionOptions(), Registry())
        if door == "native":
            return open_remote_agent(agent.address, name)
        url = f"kserve+{agent.http_url}" if door.startswith(("http", "json")) else f"kserve://{agent.address}"
        session = kserve(url, name, SharedMemoryUse.ON if "memory" in door else SharedMemoryUse.OFF)
        if door == "json":  # as towards a server that has no binary extension
            assert isinstance(session.predictor.form, HttpRequestForm)
            session.predictor.form = replace(session.predictor.form, is_binary=False)
        return session

    with ExitStack() as stack:
        sessions: dict[tuple[str, str], Any] = {}

        def once(door: str, name: str) -> Any:
            if (door, name) not in sessions:
                sessions[door, name] = stack.enter_context(open_(door, name))
            return sessions[door, name]

        yield once


def values(dtype: str) -> NDArray[Any]:
    return np.array(VALUES[dtype], object if dtype == "string" else dtype)


def forms(dtype: str) -> dict[str, NDArray[Any]]:
    """The values as arrays of several kinds in memory."""
    array = values(dtype)
    if dtype == "string":
        return {"objects": array, "of one length": np.array(VALUES[dtype], np.str_)}
    swapped = array.astype(array.dtype.newbyteorder(">"))
    return {"native": array, "big-endian": swapped, "strided": array.repeat(2, axis=1)[:, ::2]}


def check(result: BatchResult, wanted: NDArray[Any], form: str) -> None:
    assert result.failures == (), form
    assert isinstance(result.outputs, RawOutputs)
    found = result.outputs.tensors["y"]
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape), form
    if wanted.dtype.hasobject:
        assert found.tolist() == wanted.tolist(), form
    else:
        np.testing.assert_array_equal(found, wanted, form)


@pytest.mark.parametrize(("door", "dtype"), TAKEN)
def test_what_goes_in_comes_out(opened: Callable[[str, str], Any], door: str, dtype: str) -> None:
    session, wanted = opened(door, f"Same_{dtype}"), values(dtype)
    for form, array in forms(dtype).items():
        inputs = [Input(str(place), Tensor(row)) for place, row in enumerate(array)]
        check(session.predict_tensor(array), wanted, form)
        check(session.predict(inputs), wanted, form)
        [result] = session.predict_batches([inputs])
        check(result, wanted, form)
    rows = [array[place : place + 1] for array in forms(dtype).values() for place in range(len(array))]
    for under_load in (
        PreparedInputs(tuple({"x": row} for row in rows), "rows"),
        ReadInputs(tuple(Tensor(row[0]) for row in rows), "rows"),
    ):
        assert failures_under_load(session, under_load) == {}


def failures_under_load(session: Any, inputs: PreparedInputs | ReadInputs) -> object:
    with make_load_target(session, inputs) as target:
        log = QueryLog(Schedule(np.zeros(len(inputs), np.int64), "all at once", 1.0), time.perf_counter_ns())
        target.begin(log)
        for query in range(len(inputs)):
            log.sent(query, time.perf_counter_ns())
            target.submit(query)
        target.end(DEADLINE_S)
    assert log.reasons or log.queries().count(Outcome.ANSWERED) == len(inputs)
    return log.reasons


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("dtype", ONLY_OUT)
def test_other_types_come_out(opened: Callable[[str, str], Any], door: str, dtype: str) -> None:
    given = np.array([[0, 1, 127], [2, 3, 4]], np.int32)
    check(opened(door, f"To_{dtype}").predict_tensor(given), given.astype(dtype), dtype)


@pytest.mark.parametrize("door", DOORS)
def test_bfloat16_of_a_model_is_one_clear_failure(opened: Callable[[str, str], Any], door: str) -> None:
    result = opened(door, "To_bfloat16").predict_tensor(np.ones((2, 3), np.float32))
    assert {each.input_id for each in result.failures} == {"0", "1"}
    for each in result.failures:
        assert "bfloat16" in each.message
        assert "\n" not in each.message


def misfits(dtype: str) -> dict[str, NDArray[Any]]:
    """What a model of a type does not take, by what is wrong with it."""
    array = values(dtype)
    others: dict[str, NDArray[Any]] = {each: np.zeros((2, 3), each) for each in NOT_TAKEN}
    if dtype == "string":
        del others["<U2"]
        others["float32"] = np.zeros((2, 3), np.float32)
    elif not dtype.startswith("float"):
        others["float32"] = np.zeros((2, 3), np.float32)
        others["uint64"] = np.zeros((2, 3), np.uint64)
    others["objects"] = np.full((2, 3), None)
    others |= {"no rows": array[:0], "no columns": array[:, :0], "a scalar": array[0, 0:1].reshape(())}
    return others | {"one axis": array[0], "three axes": array[None]}


@pytest.mark.parametrize("dtype", VALUES)
def test_what_is_not_taken_is_the_same_line_everywhere(opened: Callable[[str, str], Any], dtype: str) -> None:
    doors = [door for door, taken in TAKEN if taken == dtype]
    for name, array in misfits(dtype).items():
        refusals = {}
        for door in doors:
            with pytest.raises((InputError, PredictionError)) as error:
                opened(door, f"Same_{dtype}").predict_tensor(array)
            refusals[door] = (type(error.value), str(error.value))
        assert len(set(refusals.values())) == 1, (name, refusals)
        assert "\n" not in refusals["here"][1]
        assert refusals["here"][0] is InputError


@pytest.mark.parametrize("dtype", ["float32", "string"])
def test_an_input_that_is_not_taken_fails_alone_everywhere(
    opened: Callable[[str, str], Any], dtype: str
) -> None:
    doors = [door for door, taken in TAKEN if taken == dtype]
    right, wrong = Input("right", Tensor(values(dtype)[0])), np.zeros(3, np.complex64)
    for in_memory in (True, False):
        bad = Input("wrong", Tensor(wrong) if in_memory else lambda: Tensor(wrong))
        results = [opened(door, f"Same_{dtype}").predict([bad, right]) for door in doors]
        assert {result.input_ids for result in results} == {("right",)}
        said = {(f.input_id, f.stage, f.message) for result in results for f in result.failures}
        assert len(said) == 1, said


@pytest.mark.parametrize("door", DOORS)
def test_a_dynamic_axis_of_no_size_is_refused(opened: Callable[[str, str], Any], door: str) -> None:
    session = opened(door, "Any_float32")
    check(session.predict_tensor(np.ones((2, 1), np.float32)), np.ones((2, 1), np.float32), door)
    with pytest.raises(InputError, match=r"tensor has shape \[2, 0\]; the model takes \[2, -1\]"):
        session.predict_tensor(np.ones((2, 0), np.float32))


@pytest.mark.parametrize("door", ["memory", "http memory"])
def test_strings_in_shared_memory_are_refused_where_they_are_asked_for(
    opened: Callable[[str, str], Any], door: str
) -> None:
    with pytest.raises(ConfigurationError, match="the model takes strings, whose sizes differ"):
        opened(door, "Same_string")


@pytest.mark.parametrize("dtype", [*ONLY_OUT, "bfloat16", "complex64"])
def test_a_manifest_has_no_other_type_of_an_input(tmp_path: Path, dtype: str) -> None:
    assert dtype not in {each.value for each in TensorElementType}
    manifest = tmp_path / "Other.yml"
    manifest.write_text(MANIFEST.format(name="Other", axis=3, dtype=dtype))
    with pytest.raises(ManifestError, match=f"element_type: found '{dtype}'; input should be"):
        load_manifest(manifest)


def test_strings_of_one_length_are_strings_in_answers_too() -> None:
    texts = np.array(VALUES["string"], np.str_)
    result = BatchResult(("0", "1"), RawOutputs({"y": texts}), (), StageTimes(0, 0, 0, 0))
    decoded = decode_response(encode_response(result))
    assert isinstance(decoded.outputs, RawOutputs)
    assert decoded.outputs.tensors["y"].tolist() == VALUES["string"]
    assert datatype_of(texts.dtype) is STRINGS


@dataclass
class Resources:
    """Opens nothing anew: the model is open."""

    session: Any
    data_directory: Path
    catalog: Catalog
    cache: None = None

    def check_system(self, request: SystemRequest) -> None:
        """There is no model to check."""

    def open_loadable(self, request: SystemRequest, *, notify: Notify) -> Any:
        return KeptOpen(self.session)


class KeptOpen:
    """A system that the next test uses too."""

    def __init__(self, session: Any) -> None:
        self._session = session

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def close(self) -> None:
        pass


SHORT: dict[str, Any] = {"synthetic": True, "min_duration_s": 0.02, "min_queries": 4, "force": True}


@pytest.mark.parametrize(
    ("door", "dtype"), [taken for taken in TAKEN if "here" in taken or {"float32", "string"} & set(taken)]
)
def test_a_workload_of_every_type(
    opened: Callable[[str, str], Any], folder: Path, tmp_path: Path, door: str, dtype: str
) -> None:
    """The inputs that are drawn depend on the type alone, and that each door takes them is tested above."""
    name = f"Any_{dtype}"
    resources: Any = Resources(opened(door, name), tmp_path, Catalog([folder]))
    request = WorkloadRequest(system=SystemRequest(model_name=name), concurrency=2, **SHORT)
    [evaluation] = LoadJob(request).run(resources)
    assert evaluation.status is Status.COMPLETE
    assert isinstance(evaluation.measurement, LoadMeasurement)
    queries = evaluation.measurement.run.queries
    assert queries.count(Outcome.ANSWERED) == len(queries) >= 4


@pytest.mark.parametrize(
    ("door", "dtype"), [("here", "string"), ("native", "string"), ("grpc", "string"), ("memory", "bool")]
)
def test_a_search_of_strings_through_each_protocol(
    opened: Callable[[str, str], Any], folder: Path, tmp_path: Path, door: str, dtype: str
) -> None:
    name = f"Same_{dtype}"
    resources: Any = Resources(opened(door, name), tmp_path, Catalog([folder]))
    request = MaxQpsRequest(
        system=SystemRequest(model_name=name), initial_qps=200, time_budget_s=1.0, **SHORT
    )
    [evaluation] = LoadJob(request).run(resources)
    assert evaluation.status is Status.COMPLETE
    assert isinstance(evaluation.measurement, RateSearchMeasurement)
    for probe in evaluation.measurement.probes:
        assert probe.queries.count(Outcome.FAILED) == 0


WIRES = ("grpc raw", "grpc typed", "http binary", "http json", "grpc memory", "http memory")
DATATYPE_OF = {
    dtype: STRINGS.name if dtype == "string" else datatype_of(np.dtype(dtype)).name for dtype in VALUES
}
GIVEN = (*DATATYPES, BF16.name, STRINGS.name, "FP8")


@pytest.fixture(scope="module")
def wires(agent: AgentServer) -> Iterator[Callable[[str, str, str, list[int], NDArray[Any]], NDArray[Any]]]:
    """Sends a tensor of a datatype over the Open Inference Protocol, and returns the answer."""
    assert agent.http_url is not None
    grpc_client = triton.InferenceServerClient(agent.address)
    http_client = triton_http.InferenceServerClient(agent.http_url.partition("://")[2])
    count = iter(range(10_000))

    def send(wire: str, model: str, datatype: str, shape: list[int], array: NDArray[Any]) -> NDArray[Any]:
        door, _, how = wire.partition(" ")
        client, module = (grpc_client, triton) if door == "grpc" else (http_client, triton_http)
        content, tensor = content_of(datatype, array), module.InferInput("x", shape, datatype)
        if how == "typed":
            return typed(grpc_client, model, datatype, shape, array)
        if how == "memory":
            return shared(client, model, tensor, content, f"inferometer-types-{next(count)}")
        if how == "raw":
            tensor._raw_content = content
        elif how == "binary":
            tensor._raw_data, tensor._parameters["binary_data_size"] = content, len(content)
        else:
            tensor._data = array.reshape(-1).tolist()
        return client.infer(model, [tensor]).as_numpy("y")

    yield send
    grpc_client.close()
    http_client.close()


def content_of(datatype: str, array: NDArray[Any]) -> bytes:
    if datatype == STRINGS.name:
        return b"".join(struct.pack("<I", len(text)) + text for text in map(str.encode, array.flat))
    if datatype == BF16.name:
        return (array.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).tobytes()
    return array.tobytes()


def typed(client: Any, model: str, datatype: str, shape: list[int], array: NDArray[Any]) -> NDArray[Any]:
    pb, known = triton.service_pb2, {**DATATYPES, STRINGS.name: STRINGS}.get(datatype)
    field = "int_contents" if known is None or known.contents is None else known.contents
    elements = array.reshape(-1).tolist()
    if field == "bytes_contents":
        elements = [text.encode() for text in elements]
    elif field == "int_contents":
        elements = list(map(int, elements))
    item = pb.ModelInferRequest.InferInputTensor(
        name="x", datatype=datatype, shape=shape, contents=pb.InferTensorContents(**{field: elements})
    )
    try:
        response = client._client_stub.ModelInfer(pb.ModelInferRequest(model_name=model, inputs=[item]))
    except triton.grpc.RpcError as error:
        raise InferenceServerException(error.details()) from error
    return triton.InferResult(response).as_numpy("y")


def shared(client: Any, model: str, tensor: Any, content: bytes, name: str) -> NDArray[Any]:
    region = shared_memory.create_shared_memory_region(name, f"/{name}", max(1, len(content)))
    try:
        region._mpsm_handle.buf[: len(content)] = content
        client.register_system_shared_memory(name, f"/{name}", max(1, len(content)))
        tensor.set_shared_memory(name, len(content))
        answer: NDArray[Any] = client.infer(model, [tensor]).as_numpy("y")
        return answer
    finally:
        client.unregister_system_shared_memory(name)
        shared_memory.destroy_shared_memory_region(region)


def sent(datatype: str) -> NDArray[Any]:
    """An input of one row in a datatype."""
    if datatype == STRINGS.name:
        return np.array([["", "Größe", "1"]], object)
    known = DATATYPES.get(datatype)
    return np.array([[0, 1, 1]], np.float32 if datatype == BF16.name else known.dtype if known else np.uint8)


WITHOUT_A_FORM = {("http json", BF16.name), ("grpc typed", BF16.name), ("grpc typed", "FP16")}


@pytest.mark.parametrize("dtype", VALUES)
@pytest.mark.parametrize("datatype", GIVEN)
def test_datatypes_of_the_open_inference_protocol(wires: Any, dtype: str, datatype: str) -> None:
    """Each is exact, converted without loss, or refused in the same line over each wire that has it."""
    own = STRINGS if dtype == "string" else datatype_of(np.dtype(dtype))
    taken = datatype == own.name or datatype in converted_to(own)
    array, refusals = sent(datatype), {}
    for wire in WIRES:
        try:
            found = wires(wire, f"Same_{dtype}", datatype, [1, 3], array)
        except InferenceServerException as error:
            refusals[wire] = error.message().partition("model ")[2] or error.message()
            continue
        assert taken, wire
        texts = [[text.decode() for text in row] for row in found] if dtype == "string" else found.tolist()
        assert texts == (array if dtype == "string" else array.astype(dtype)).tolist()
    lines = {said for wire, said in refusals.items() if (wire, datatype) not in WITHOUT_A_FORM}
    assert len(lines) == (not taken), refusals
    assert not any("\n" in said for said in refusals.values())


@pytest.mark.parametrize("dtype", ["float32", "bool", "string"])
@pytest.mark.parametrize(
    ("model", "shape"), [("Same", [0, 3]), ("Any", [2, 0]), ("Same", []), ("Same", [3]), ("Same", [1, 1, 3])]
)
def test_shapes_that_are_not_taken_over_the_open_inference_protocol(
    wires: Any, dtype: str, model: str, shape: list[int]
) -> None:
    array = np.resize(values(dtype), shape)
    said = set()
    for wire in WIRES:
        with pytest.raises(InferenceServerException) as error:
            wires(wire, f"{model}_{dtype}", DATATYPE_OF[dtype], shape, array)
        said.add(error.value.message().partition("model ")[2])
    assert len(said) == 1, said
    assert f"found shape {shape}" in said.pop()
