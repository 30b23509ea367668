"""``ModelStreamInfer``: requests over one stream, answered in order, including failures."""

import asyncio
import queue
import threading

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
from fake_framework import SIDE, mean_scores, wait_for
from open_inference import TIMEOUT_S, images, tensor_of

from inferometer.agent.server.calls import in_order
from inferometer.agent.serving.batching import BatchingOptions
from inferometer.agent.serving.served_models import ServingOptions

pb = triton.service_pb2


def request(batch, id_="", model="Mean", name="data"):
    item = pb.ModelInferRequest.InferInputTensor(name=name, datatype="FP32", shape=batch.shape)
    return pb.ModelInferRequest(model_name=model, id=id_, inputs=[item], raw_input_contents=[batch.tobytes()])


@pytest.fixture
def stream_of(channel_to):
    """Opens the stream of an agent over requests."""

    def call(agent, requests):
        stub = triton.service_pb2_grpc.GRPCInferenceServiceStub(channel_to(agent.address))
        return stub.ModelStreamInfer(iter(requests), timeout=TIMEOUT_S)

    return call


def test_answers_come_in_the_order_of_the_requests(start_agent, stream_of):
    batches = [images(1 + number % 3, seed=number) for number in range(60)]
    requests = [request(batch, str(number)) for number, batch in enumerate(batches)]
    answers = list(stream_of(start_agent(), requests))
    assert [answer.infer_response.id for answer in answers] == [str(number) for number in range(60)]
    for batch, answer in zip(batches, answers, strict=True):
        assert not answer.error_message
        got = np.frombuffer(answer.infer_response.raw_output_contents[0], np.float32)
        np.testing.assert_array_equal(got.reshape(-1, 3), mean_scores(batch))


def test_request_that_fails_is_told_in_the_stream_which_goes_on(start_agent, stream_of):
    batch = images(1)
    requests = [
        request(batch, "a"),
        request(batch, "b", name="date"),
        request(batch, "c", model="Meam"),
        request(batch, "d", model="Crashing"),
        request(batch, "e"),
    ]
    answers = list(stream_of(start_agent(), requests))
    assert [answer.infer_response.id for answer in answers] == list("abcde")
    messages = [answer.error_message for answer in answers]
    assert (messages[0], messages[4]) == ("", "")
    assert 'no input "date"' in messages[1]
    assert 'did you mean "Mean"?' in messages[2]
    assert "ZeroDivisionError" in messages[3]
    assert "a secret detail" not in messages[3]
    assert not any("\n" in message for message in messages)


@pytest.mark.parametrize("wanted", [None, False, True])
def test_the_one_response_of_a_request_is_its_final_one(start_agent, wanted):
    answers = queue.SimpleQueue()
    with triton.InferenceServerClient(start_agent().address) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        options = {} if wanted is None else {"enable_empty_final_response": wanted}
        for number in range(3):
            client.async_stream_infer("Mean", [tensor_of(images(1))], request_id=str(number), **options)
        client.stop_stream()
        found = [answers.get(timeout=TIMEOUT_S) for _ in range(3)]
        assert answers.empty()
        only = client.infer("Mean", [tensor_of(images(1))]).get_response()
    assert [error for _, error in found] == [None] * 3
    for result, _ in found:
        assert result.get_response().parameters["triton_final_response"].bool_param
        assert result.as_numpy("scores").shape == (1, 3)
    assert "triton_final_response" not in only.parameters


def test_a_failed_request_has_its_final_response_too(start_agent, stream_of):
    wrong = request(images(1), "b")
    wrong.parameters["triton_enable_empty_final_response"].string_param = "yes"
    answers = list(stream_of(start_agent(), [request(images(1), "a", model="Meam"), wrong]))
    assert [answer.infer_response.id for answer in answers] == ["a", "b"]
    assert all(a.infer_response.parameters["triton_final_response"].bool_param for a in answers)
    assert "triton_enable_empty_final_response must be true or false" in answers[1].error_message


def test_each_request_of_a_client_that_waits_is_answered_at_once(start_agent):
    answers = queue.SimpleQueue()
    with triton.InferenceServerClient(start_agent().address) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        for number in range(3):
            batch = np.full((1, 1, SIDE, SIDE), number, np.float32)
            client.async_stream_infer("Mean", [tensor_of(batch)], request_id=str(number))
            result, error = answers.get(timeout=TIMEOUT_S)
            assert error is None
            np.testing.assert_array_equal(result.as_numpy("scores"), mean_scores(batch))
        client.async_stream_infer("Meam", [tensor_of(batch)])
        result, error = answers.get(timeout=TIMEOUT_S)
        assert 'did you mean "Mean"?' in error.message()
        client.stop_stream()


def test_requests_of_one_stream_are_predicted_together(start_agent, stream_of):
    batching = BatchingOptions(max_batch_size=8, max_queue_delay_ms=20_000)
    agent = start_agent(serving=ServingOptions(batching=batching))
    answers = list(stream_of(agent, [request(images(1)) for _ in range(16)]))
    sizes = [answer.infer_response.parameters["batch_size"].int64_param for answer in answers]
    assert sizes == [8] * 16


def test_client_that_leaves_a_stream_frees_its_place(start_agent, channel_to, manifest_folder):
    agent = start_agent(workers=2)  # of which one may be a stream's
    stub = triton.service_pb2_grpc.GRPCInferenceServiceStub(channel_to(agent.address))
    gone = threading.Event()

    def requests():
        for _ in range(40):
            yield request(images(1), model="Waiting")
        gone.wait(TIMEOUT_S)

    left = stub.ModelStreamInfer(requests(), timeout=TIMEOUT_S)
    wait_for((manifest_folder / "begun").exists)
    with pytest.raises(grpc.RpcError) as error:
        list(stub.ModelStreamInfer(iter([request(images(1))]), timeout=TIMEOUT_S))
    assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    left.cancel()
    (manifest_folder / "go").touch()
    gone.set()

    def free():
        try:
            return list(stub.ModelStreamInfer(iter([request(images(1))]), timeout=TIMEOUT_S))
        except grpc.RpcError as error:
            assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED  # noqa: PT017 - until it is free
            return None

    wait_for(free)


def test_stream_of_bytes_that_are_no_message_is_ended(start_agent, channel_to):
    call = channel_to(start_agent().address).stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
    with pytest.raises(grpc.RpcError) as error:
        list(call(iter([b"\xff\xff\xff"]), timeout=TIMEOUT_S))
    assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "not a message of its type" in error.value.details()


@pytest.mark.parametrize("requests", [0, 1])
def test_stream_that_is_cancelled_while_it_waits_ends_as_cancelled_and_so_does_its_work(requests):
    began, cancelled = [], []

    async def receive():
        for number in range(requests):
            yield number
        await asyncio.Event().wait()

    async def answer(request):
        began.append(request)
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(request)

    async def run():
        waiting = asyncio.ensure_future(anext(in_order(receive(), answer)))
        for _ in range(10):  # as often as tasks make way for each other
            await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert cancelled == began == list(range(requests))

    asyncio.run(asyncio.wait_for(run(), TIMEOUT_S))


def test_parts_of_an_answer_come_while_later_requests_are_answered():
    """More requests than may be in progress, of which each third is answered in parts."""
    first_may_end = asyncio.Event()

    async def receive():
        for number in range(50):
            yield number

    async def parts(number):
        yield number, "begun"
        if number == 0:
            await first_may_end.wait()
        yield number, "ended"

    async def answer(number):
        return (number, "whole") if number % 3 else parts(number)

    async def run():
        found = []
        async for each in in_order(receive(), answer):
            found.append(each)
            if each == (49, "whole"):
                first_may_end.set()
        assert [number for number, what in found if what == "whole"] == [n for n in range(50) if n % 3]
        texts = [(number, what) for number in range(0, 50, 3) for what in ("begun", "ended")]
        assert sorted(each for each in found if each[1] != "whole") == texts
        assert found[-1] == (0, "ended")

    asyncio.run(asyncio.wait_for(run(), TIMEOUT_S))


def test_parts_that_are_not_taken_hold_back_further_requests():
    received = []

    async def receive():
        for number in range(100):
            received.append(number)
            yield number

    async def parts(number):
        yield number

    async def answer(number):
        return parts(number)

    async def run():
        answers = in_order(receive(), answer)
        await anext(answers)
        for _ in range(1000):  # as often as tasks make way for each other
            await asyncio.sleep(0)
        assert len(received) < 30
        await answers.aclose()

    asyncio.run(asyncio.wait_for(run(), TIMEOUT_S))
