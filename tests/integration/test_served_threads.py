"""The threads of sessions at an agent: the client's, else the agent's ``--threads``, else the default."""

import pytest

from inferometer.agent.inference.session import SessionOptions
from inferometer.agent.serving.batching import BatchingOptions
from inferometer.agent.serving.served_models import ServingOptions
from inferometer.client.remote.native.agent import open_remote_agent


@pytest.fixture
def agent_with(start_agent):
    def start(threads, max_batch_size=1):
        session = SessionOptions(threads=threads)
        return start_agent(serving=ServingOptions(BatchingOptions(max_batch_size), session))

    return start


@pytest.mark.parametrize(
    ("agents", "clients", "used"), [(1, None, 1), (1, 3, 3), (3, 1, 1), (None, None, None), (None, 2, 2)]
)
def test_a_session_has_the_clients_threads_or_else_the_agents(agent_with, agents, clients, used):
    agent = agent_with(agents)
    with open_remote_agent(agent.address, "Echo", options=SessionOptions(threads=clients)) as remote:
        assert remote.description.threads == used


def test_clients_that_name_the_agents_number_share_a_model_with_those_that_name_none(agent_with):
    agent = agent_with(2, max_batch_size=4)
    with (
        open_remote_agent(agent.address, "Echo"),
        open_remote_agent(agent.address, "Echo", options=SessionOptions(threads=2)),
    ):
        assert len(agent.models) == 1
