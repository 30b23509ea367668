"""The board hands out every batch until it has one answer, and gives the answers in order."""

import random
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.agent.inference.stages import BatchResult, StageTimes
from inferometer.agent.preprocessing.inputs import EncodedImage, Input
from inferometer.client.remote.pool import MAX_TRIES, BatchQueue
from inferometer.manifests.errors import AgentError


def batches(count):
    return [[Input(str(n), EncodedImage(b""))] for n in range(count)]


def result(lease):
    return BatchResult((lease.inputs[0].id,), None, (), StageTimes(0, 0, 0, 0))


@given(
    count=st.integers(0, 30),
    agents=st.integers(1, 5),
    ahead=st.integers(1, 10),
    seed=st.integers(0, 2**32),
    losses=st.integers(0, 2),
)
def test_every_batch_is_answered_once_in_order_whoever_is_lost(count, agents, ahead, seed, losses):
    draw = random.Random(seed)
    alive = [f"agent {n}" for n in range(agents)]
    losses = min(losses, agents - 1, MAX_TRIES - 1)
    board = BatchQueue(batches(count), alive, ahead)
    held = {name: [] for name in alive}
    given_, answered = [], set()
    while len(given_) < count:
        name = draw.choice(alive)
        if losses and draw.random() < 0.1:
            losses -= 1
            alive.remove(name)
            assert board.lose(name, held.pop(name), f"{name} died")
        elif held[name] and draw.random() < 0.5:
            lease = held[name].pop(draw.randrange(len(held[name])))
            board.answer(name, lease, result(lease))
            answered.add(lease.number)
            if lease.number == len(given_):
                given_.append(board.next().input_ids[0])
        elif lease := board.take(wait=False):
            assert lease.number < len(given_) + ahead
            held[name].append(lease)
        while len(given_) in answered:
            given_.append(board.next().input_ids[0])
    assert given_ == [str(n) for n in range(count)]
    assert board.take(wait=True) is None
    assert board.next() is None
    assert sum(board.answered.values()) == count


def test_what_came_back_is_handed_out_first():
    board = BatchQueue(batches(5), ["a", "b"], 10)
    held = [board.take(wait=False) for _ in range(2)]
    board.lose("a", reversed(held), "died")
    assert [board.take(wait=False).number for _ in range(3)] == [0, 1, 2]


def test_waiting_for_a_batch_ends_when_another_agent_is_lost():
    board = BatchQueue(batches(1), ["a", "b"], 10)
    lease = board.take(wait=False)
    taken = []
    thread = threading.Thread(target=lambda: taken.append(board.take(wait=True)))
    thread.start()
    board.lose("a", [lease], "died")
    thread.join(30)
    assert taken[0].number == 0
    assert taken[0].tries == 1


def test_waiting_for_a_batch_ends_with_the_last_answer():
    board = BatchQueue(batches(1), ["a", "b"], 10)
    lease = board.take(wait=False)
    taken = []
    thread = threading.Thread(target=lambda: taken.append(board.take(wait=True)))
    thread.start()
    board.answer("a", lease, result(lease))
    thread.join(30)
    assert taken == [None]


def test_batch_that_was_lost_too_often_ends_the_run():
    names = [str(n) for n in range(MAX_TRIES + 1)]
    board = BatchQueue(batches(2), names, 10)
    for name in names[:MAX_TRIES]:
        board.lose(name, [board.take(wait=False)], f"{name} died")
    with pytest.raises(AgentError, match=rf"{MAX_TRIES} agents were lost with batch 0.* input 0: .*2 died"):
        board.next()


def test_nobody_left_is_said_with_every_reason():
    board = BatchQueue(batches(2), ["a", "b"], 10)
    lease = board.take(wait=False)
    board.answer("a", lease, result(lease))
    board.lose("a", [], "a died")
    board.lose("b", [], "b died")
    assert board.next().input_ids == ("0",)
    with pytest.raises(AgentError, match="a died; b died"):
        board.next()


def test_closed_board_hands_out_nothing_and_hears_of_no_loss():
    board = BatchQueue(batches(2), ["a"], 10)
    board.close()
    assert board.take(wait=True) is None
    assert not board.lose("a", [], "a died")
