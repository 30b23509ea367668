"""The server with known times sends when it says, and misbehaves as it is told."""

import http.client
import json
import statistics
import time
from contextlib import closing, suppress

import pytest

from tests.integration.generation_truth import serving

SAID = "größer naïve été 日本 token ﬁve one the"


def asked(address, path="/v1/chat/completions", key="", **more):
    """The status and the lines of an answer, each with when it was read."""
    body = {"model": "tiny", "stream": True, "max_tokens": 8, **more}
    body |= {"messages": [{"role": "user", "content": "a b c"}]} if "chat" in path else {"prompt": "a b c"}
    lines = []
    with closing(http.client.HTTPConnection(address, timeout=20)) as connection:
        connection.request("POST", path, json.dumps(body), {"Authorization": f"Bearer {key}"})
        response = connection.getresponse()
        with suppress(ConnectionError, http.client.IncompleteRead):
            while line := response.readline():
                lines.append((time.perf_counter_ns(), line.decode().strip()))
    return response.status, lines


def events(lines):
    return [json.loads(line.removeprefix("data: ")) for _, line in lines if line.startswith("data: {")]


def joined(lines, key="content"):
    choices = [choice for event in events(lines) for choice in event.get("choices", ())]
    return "".join(choice["delta"].get(key, "") for choice in choices).strip()


@pytest.mark.real_time
@pytest.mark.parametrize("chunk", [1, 3, 7])
@pytest.mark.parametrize("split_ms", [0, 1], ids=["whole", "split"])
def test_chunks_come_when_they_are_due_and_when_the_server_says(chunk, split_ms):
    with serving(chunk=chunk, split_ms=split_ms) as server:
        _, lines = asked(server.address, max_tokens=32)
        [sent] = server.sent()
    read_ns = [when for when, line in lines if '"content"' in line and '"role"' not in line]
    sent_ns = [when for when, _, _ in sent.chunks]
    counts = [count for _, count, _ in sent.chunks]
    due_ms = [50 + split_ms + 4 * sum(counts[1 : place + 1]) for place in range(len(counts))]

    assert sum(counts) == sent.tokens == 32
    assert set(counts[:-1]) == {chunk}
    late_ms = [(when - sent.turn_ns) / 1e6 - due for when, due in zip(sent_ns, due_ms, strict=True)]
    read_ms = [(read - when) / 1e6 for read, when in zip(read_ns, sent_ns, strict=True)]
    assert min(late_ms) >= 0
    assert statistics.median(late_ms) < 0.5
    assert min(read_ms) >= 0
    assert statistics.median(read_ms) < 0.5


@pytest.mark.parametrize("closes", [False, True], ids=["chunked", "closes"])
@pytest.mark.parametrize("crlf", [False, True], ids=["lf", "crlf"])
def test_reasoning_comes_first_and_the_usage_last(closes, crlf):
    with serving(first_ms=1, token_ms=0.1, reasoning=5, chunk=3, closes=closes, crlf=crlf) as server:
        status, lines = asked(server.address, stream_options={"include_usage": True})
        [sent] = server.sent()

    assert status == 200
    assert [count for _, count, _ in sent.chunks] == [3, 2, 3]
    assert sent.reasoning == 2
    assert f"{joined(lines, 'reasoning_content')} {joined(lines)}" == SAID
    assert events(lines)[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert events(lines)[-1]["usage"] == {"prompt_tokens": 7, "completion_tokens": 8}
    assert lines[-1 - (lines[-1][1] == "")][1] == "data: [DONE]"


def test_completions_and_what_ends_early():
    with serving(first_ms=1, token_ms=0.1, most_tokens=4) as server:
        _, early = asked(server.address, "/v1/completions")
        _, whole = asked(server.address, "/v1/completions", ignore_eos=True)
        _, [(_, plain)] = asked(server.address, "/v1/completions", stream=False)
        sent = server.sent()

    assert [each.end for each in sent] == ["stop", "length", "stop"]
    texts = ["".join(event["choices"][0]["text"] for event in events(lines)) for lines in (early, whole)]
    assert texts == [" größer naïve été 日本", f" {SAID}"]
    assert json.loads(plain)["usage"] == {"prompt_tokens": 3, "completion_tokens": 4}


@pytest.mark.parametrize(("breaks", "said"), [("error", "the engine has died"), ("cut", "naïve")])
def test_a_stream_breaks_in_the_middle(breaks, said):
    with serving(first_ms=1, breaks=breaks, breaks_after=2, every=2) as server:
        answers = [asked(server.address)[1] for _ in range(2)]
        sent = server.sent()

    assert [each.end for each in sent] == ["length", breaks]
    assert joined(answers[0]) == SAID
    assert joined(answers[1]) == "größer naïve"
    assert said in [line for _, line in answers[1] if line][-1]


@pytest.mark.parametrize(
    ("asks", "status"),
    [
        ({"key": "wrong"}, 401),
        ({"model": "other", "key": "k"}, 404),
        ({"path": "/v1/chats", "key": "k"}, 404),
    ],
)
def test_what_is_refused(asks, status):
    with serving(key="k") as server:
        found, [(_, line)] = asked(server.address, **asks)
        assert server.sent() == []

    assert found == status
    assert json.loads(line)["error"]["message"]
