"""A pool of agents as one system under test: the batches of a run go to free agents."""

from __future__ import annotations

import heapq
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TypeVar

from inferometer.agent.hardware.conditions import ConditionCounters
from inferometer.agent.inference.stages import BatchResult, SystemDescription
from inferometer.agent.preprocessing.inputs import Input
from inferometer.agent.tracing.recorder import TraceScope
from inferometer.client.remote.native.agent import RemoteAgent
from inferometer.manifests.errors import (
    AgentError,
    ConfigurationError,
    DeviceLostError,
    HungError,
    SessionError,
)

MAX_TRIES = 3
"""A batch is given up after this many agents were lost while they held it: it may be the cause."""


@dataclass(frozen=True, slots=True, order=True)
class Lease:
    """A batch that one agent processes; ``number`` is its place in the run."""

    number: int
    inputs: Sequence[Input] = field(compare=False)
    tries: int = field(default=0, compare=False)
    """The number of agents lost so far while they held the batch."""


class BatchQueue:
    """Hands out batches and collects their results. Thread-safe.

    Each batch has one answer: the batches of a lost agent are handed out again, and only a batch that is
    handed out can be answered. Batches are read from the source on demand, a bounded number ahead of the
    results. ``ahead`` is how many batches may be handed out ahead of the next result. One thread at a time
    reads the source.
    """

    def __init__(self, batches: Iterable[Sequence[Input]], agents: Iterable[str], ahead: int) -> None:
        self._source = iter(batches)
        self._agents = set(agents)
        self._ahead = ahead
        self._changed = threading.Condition()
        self._returned: list[Lease] = []
        self._results: dict[int, BatchResult] = {}
        self._out: set[int] = set()
        self._taken = 0
        self._wanted = 0
        self._exhausted = False
        self._closed = False
        self._lost: dict[str, str] = {}
        self._error: BaseException | None = None
        self._source_error: Exception | None = None
        self._answered: dict[str, int] = {}

    @property
    def answered(self) -> Mapping[str, int]:
        """The number of batches that each agent has answered."""
        with self._changed:
            return dict(self._answered)

    def take(self, *, wait: bool) -> Lease | None:
        """Returns a batch to predict; None if there is none now or, if ``wait`` is set, if none will come.

        With ``wait``, waits while there is none, because another agent may be lost and leave its batches.
        """
        with self._changed:
            while not self._closed:
                if (lease := self._next()) is not None:
                    self._out.add(lease.number)
                    return lease
                if not wait or (self._exhausted and not self._out):
                    return None
                self._changed.wait()
            return None

    def answer(self, agent: str, lease: Lease, result: BatchResult) -> None:
        """Accepts the result of a batch."""
        with self._changed:
            self._out.discard(lease.number)
            self._results[lease.number] = result
            self._answered[agent] = self._answered.get(agent, 0) + 1
            self._changed.notify_all()

    def lose(self, agent: str, held: Iterable[Lease], reason: str) -> bool:
        """Removes an agent and hands out its batches again; returns whether the run continues."""
        with self._changed:
            if self._closed:
                return False
            self._agents.discard(agent)
            self._lost[agent] = reason
            for lease in held:
                self._out.discard(lease.number)
                again = Lease(lease.number, lease.inputs, lease.tries + 1)
                heapq.heappush(self._returned, again)
                if again.tries >= MAX_TRIES and self._error is None:
                    self._error = AgentError(
                        f"{again.tries} agents were lost with batch {again.number}, which begins with input "
                        f"{again.inputs[0].id}: it is not tried again; the last one: {reason}"
                    )
            self._changed.notify_all()
            return True

    def fail(self, error: BaseException) -> None:
        """Ends the run with an error that would also occur on another agent."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def next(self) -> BatchResult | None:
        """Waits for the next result in order; None after the last.

        Raises:
            AgentError: All agents were lost, or too many agents were lost with one batch.
            Exception: The error that the source or a batch raised.
        """
        with self._changed:
            while True:
                if self._wanted in self._results:
                    self._wanted += 1
                    self._changed.notify_all()
                    return self._results.pop(self._wanted - 1)
                if self._error is not None:
                    raise self._error
                if self._exhausted and self._wanted == self._taken:
                    if self._source_error is not None:
                        raise self._source_error
                    return None
                if not self._agents:
                    reasons = "; ".join(dict.fromkeys(self._lost.values()))
                    raise AgentError(f"no agent is left: {reasons}")
                self._changed.wait()

    def close(self) -> None:
        """Ends the run: no further batches are handed out. Calling it again does nothing."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _next(self) -> Lease | None:
        """Returns the next batch to hand out: first those of lost agents, whose results are overdue."""
        if self._error is not None:
            return None
        if self._returned:
            return heapq.heappop(self._returned)
        if self._exhausted or self._taken - self._wanted >= self._ahead:
            return None
        try:
            inputs = next(self._source, None)
        except Exception as error:  # noqa: BLE001 - raised again where the result is taken
            self._source_error, inputs = error, None
        if inputs is None:
            self._exhausted = True
            self._changed.notify_all()
            return None
        self._taken += 1
        return Lease(self._taken - 1, inputs)


_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def side_by_side(items: Sequence[_Item], call: Callable[[_Item], _Result]) -> list[_Result | Exception]:
    """Calls a function with each item, each call in its own thread, and waits for all.

    The threads are daemons: Ctrl-C does not wait for an agent that hangs. Returns the result of each call, or
    the exception that it raised, in the order of the items.
    """
    outcomes: list[_Result | Exception] = [RuntimeError("not called")] * len(items)

    def run(place: int, item: _Item) -> None:
        try:
            outcomes[place] = call(item)
        except Exception as error:  # noqa: BLE001 - handed to the caller, who raises what it does not expect
            outcomes[place] = error

    threads = [
        threading.Thread(target=run, args=each, name="side-by-side", daemon=True) for each in enumerate(items)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


LOST = (AgentError, SessionError, DeviceLostError, HungError)
"""The errors after which an agent is left out while others continue."""
_FIRST_ROUND = 2  # batches


def reason_of(address: str, error: Exception) -> str:
    """Returns why an agent was lost, with its address, which the agent's own messages lack."""
    return str(error) if address in str(error) else f"agent {address}: {error}"


class AgentWorker:
    """Sends the rounds of a run to one agent, in a separate thread, each after the results of the last one.

    Rounds begin small and grow, as the number of batches is unknown: a short run is shared among all agents,
    and in a long one an agent prepares many inputs at once. Rounds are divided by ``share``, so that all
    agents get some. ``on_loss`` is called in that thread with the lost agent, the reason, and how many
    batches it held.
    """

    def __init__(
        self,
        agent: RemoteAgent,
        queue: BatchQueue,
        share: int,
        trace: TraceScope | None,
        on_loss: Callable[[RemoteAgent, str, int], None],
    ) -> None:
        self._agent = agent
        self._name = agent.description.agent
        self._queue = queue
        self._share = share
        self._on_loss = on_loss
        self._held: deque[Lease] = deque()
        self._next_size = _FIRST_ROUND
        self._flight = agent.begin_flight(trace)
        self.cancel = self._flight.cancel
        self.thread = threading.Thread(target=self._run, name=f"agent-{self._name}", daemon=True)

    def _run(self) -> None:
        try:
            with closing(self._flight):
                self._work()
        except LOST as error:
            batches = len(self._held)
            reason = reason_of(self._name, error)
            if self._queue.lose(self._name, self._held, reason):
                self._on_loss(self._agent, reason, batches)
        except BaseException as error:  # noqa: BLE001 - raised again where the results are taken
            self._queue.fail(error)

    def _work(self) -> None:
        while True:
            while len(self._held) < self._agent.batches_in_flight and self._send_round():
                pass
            if not self._held:
                break
            result = self._flight.next()
            self._queue.answer(self._name, self._held.popleft(), result)
        self._flight.end()
        self._flight.finish()

    def _send_round(self) -> bool:
        """Sends the batches of a round, if there are any; waits for some if nothing is in flight."""
        first = self._queue.take(wait=not self._held)
        if first is None:
            return False
        round_ = [first]
        self._held.append(first)
        largest = self._agent.round_size(len(first.inputs))
        size = min(self._next_size, max(largest // self._share, min(largest, _FIRST_ROUND)))
        self._next_size *= 2
        while len(round_) < size:
            if (lease := self._queue.take(wait=False)) is None:
                break
            round_.append(lease)
            self._held.append(lease)
        batches = [self._agent.begin_batch(lease.inputs) for lease in round_]
        self._flight.add(batches, [lease.number for lease in round_])
        return True


_AHEAD_PER_AGENT = 64
_LEAVING_S = 10.0
_log = logging.getLogger(__name__)


class AgentPool:
    """A model that is open on several agents; satisfies ``evaluators.evaluation.SystemUnderTest``.

    Batches go to free agents, and the results come in order. The batches of a lost agent go to another one;
    the loss is reported, and the agent is left out from then on. The times of a batch are those of the agent
    that answered it. The pool runs one evaluation at a time. The pool closes the agents. With ``warm_up``,
    the first run is a warm-up, which each agent runs as a whole. ``say`` receives messages of one line about
    lost agents and differences between machines.

    Raises:
        ConfigurationError: The agents' models, frameworks or kinds of device differ.
    """

    in_process = False

    def __init__(
        self,
        agents: Sequence[RemoteAgent],
        *,
        warm_up: bool = False,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        descriptions = [agent.description for agent in agents]
        _check_same(descriptions)
        self._agents = list(agents)
        self._lost: dict[str, str] = {}
        self._ran: set[str] = set()
        self._cold = warm_up
        self._say = say
        self._lock = threading.Lock()
        self._closed = False
        found = {name: dict.fromkeys(map(of, descriptions)) for name, of in _MACHINE.items()}
        differing = (f"{name}: {' and '.join(values)}" for name, values in found.items() if len(values) > 1)
        if differences := "; ".join(differing):  # which affect latency
            say(f"the agents' machines differ, so latencies are those of more than one system: {differences}")

    @property
    def description(self) -> SystemDescription:
        """The model and the agents that it runs on: those of the last run, or the remaining ones."""
        known = [agent.description for agent in self._agents]
        ran = [d for d in known if d.agent in self._ran]
        alive = [d for d in known if d.agent not in self._lost]
        return _combined(ran or alive or known)

    def predict(self, inputs: Sequence[Input]) -> BatchResult:
        """Predicts one batch on the first agent that succeeds.

        Raises:
            InputError: The batch is empty.
            AgentError: All agents were lost.
        """
        for agent in self._alive():
            try:
                return agent.predict(inputs)
            except LOST as error:
                self._lose(agent, reason_of(agent.description.agent, error), 1)
        raise self._none_left()

    def predict_batches(
        self, batches: Iterable[Sequence[Input]], trace: TraceScope | None = None
    ) -> Iterator[BatchResult]:
        """Predicts batch after batch, and yields the results in order.

        Closing the iterator stops the work. The spans of each agent are added to the trace at the end, with
        the batch numbers used here.

        Raises:
            InputError: A batch is empty.
            AgentError: All agents were lost, or too many with one batch.
        """
        if self._closed:
            raise SessionError("the pool of agents is closed; open another")
        cold, self._cold = self._cold, False
        if cold:
            yield from self._warm_up([tuple(batch) for batch in batches], trace)
        else:
            yield from self._share(batches, trace)

    def condition_counters(self) -> Sequence[ConditionCounters]:
        """Reads the counters of every remaining agent; empty if one does not report them."""
        found = side_by_side(self._alive(), RemoteAgent.condition_counters)
        told = [counters for each in found if not isinstance(each, Exception) for counters in each]
        return told if len(told) == len(found) else ()

    def close(self) -> None:
        """Closes the model at every agent; calling it again does nothing."""
        if not self._closed:
            self._closed = True
            side_by_side(self._agents, RemoteAgent.close)

    def _share(self, batches: Iterable[Sequence[Input]], trace: TraceScope | None) -> Iterator[BatchResult]:
        alive = self._alive()
        names = [agent.description.agent for agent in alive]
        queue = BatchQueue(batches, names, _AHEAD_PER_AGENT * len(alive))
        self._ran = set()
        workers = [AgentWorker(agent, queue, len(alive), trace, self._lose) for agent in alive]
        if not workers:
            raise self._none_left()
        for worker in workers:
            worker.thread.start()
        try:
            while (result := queue.next()) is not None:
                self._ran = set(queue.answered)
                yield result
            for worker in workers:
                worker.thread.join()
        finally:
            queue.close()
            for worker in workers:
                worker.cancel()
            for worker in workers:
                worker.thread.join(_LEAVING_S)
            self._ran = set(queue.answered)
            shares = (f"{name} {count}" for name, count in sorted(queue.answered.items()))
            _log.info("batches by agent: %s", ", ".join(shares))

    def _warm_up(self, batches: Sequence[Sequence[Input]], trace: TraceScope | None) -> Iterator[BatchResult]:
        """Makes every agent predict all batches; the results are those of one agent."""
        alive = self._alive()
        outcomes = side_by_side(alive, lambda agent: list(agent.predict_batches(batches, trace)))
        done: list[list[BatchResult]] = []
        for agent, outcome in zip(alive, outcomes, strict=True):
            if isinstance(outcome, LOST):
                self._lose(agent, reason_of(agent.description.agent, outcome), 0)
            elif isinstance(outcome, Exception):
                raise outcome
            else:
                done.append(outcome)
        if not done:
            raise self._none_left()
        yield from done[0]

    def _alive(self) -> list[RemoteAgent]:
        with self._lock:
            return [agent for agent in self._agents if agent.description.agent not in self._lost]

    def _lose(self, agent: RemoteAgent, reason: str, batches: int) -> None:
        name = agent.description.agent
        with self._lock:
            if name in self._lost:
                return
            self._lost[name] = reason
            left = len(self._agents) - len(self._lost)
        again = f"; {batches} batches go to others" if batches and left else ""
        self._say(f"left out from here on: {reason}{again}; {left} of {len(self._agents)} agents continue")

    def _none_left(self) -> AgentError:
        return AgentError(f"no agent is left: {'; '.join(self._lost.values())}")


def open_agent_pool(
    addresses: Sequence[str],
    open_one: Callable[[str], RemoteAgent],
    *,
    warm_up: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> AgentPool:
    """Opens a model on all agents at once; see ``AgentPool``.

    An agent that is full or cannot be reached is reported and left out.

    Raises:
        AgentError: No agent can be reached.
        ConfigurationError: The agents are not comparable.
        InferometerError: An agent cannot open the model.
    """
    opened: list[RemoteAgent] = []
    lost: list[str] = []
    refused: Exception | None = None
    for address, outcome in zip(addresses, side_by_side(addresses, open_one), strict=True):
        if isinstance(outcome, RemoteAgent):
            opened.append(outcome)
        elif isinstance(outcome, LOST):
            lost.append(reason_of(address, outcome))
        else:
            refused = refused or outcome
    try:
        if refused is not None:
            raise refused
        if not opened:
            raise AgentError("; ".join(lost))
        for reason in lost:
            say(f"left out: {reason}")
        return AgentPool(opened, warm_up=warm_up, say=say)
    except BaseException:
        side_by_side(opened, RemoteAgent.close)
        raise


_SAME: Mapping[str, Callable[[SystemDescription], object]] = {
    "model": lambda d: f"{d.manifest.name} {d.manifest.version}",
    "framework": lambda d: f"{d.manifest.framework.name} {d.framework_version}",
    "kind of device": lambda d: d.device.kind.value,
    "weights": lambda d: d.weights.value if d.seed is None else f"{d.weights.value} of seed {d.seed}",
    "precision": lambda d: d.precision.value if d.precision else "its own",
    "cudnn_benchmark": lambda d: str(d.cudnn_benchmark).lower(),
    "files of the model": lambda d: dict(d.checksums),
    "manifest of the model": lambda d: d.manifest.model_dump(),
}
"""The properties that must be equal; the values of the last two are too long to print."""
_NOT_SHOWN = ("files of the model", "manifest of the model")
_MACHINE: Mapping[str, Callable[[SystemDescription], str]] = {
    "processor": lambda d: d.environment.cpu_model,
    "GPU": lambda d: ", ".join(gpu.name for gpu in d.environment.gpus) or "none",
    "threads": lambda d: str(d.threads),
    "frequency governor": lambda d: d.environment.governor or "not known",
    "settings": lambda d: ", ".join(map(" ".join, sorted(d.environment.settings.items()))) or "not known",
}


def _check_same(descriptions: Sequence[SystemDescription]) -> None:
    """Checks that several agents can be treated as one system; the error names the first difference."""
    first = descriptions[0]
    for other in descriptions[1:]:
        for name, of in _SAME.items():
            ours, theirs = of(first), of(other)
            if ours != theirs:
                shown = "" if name in _NOT_SHOWN else f": {ours} and {theirs}"
                raise ConfigurationError(
                    f"agents {first.agent} and {other.agent} differ in the {name}{shown}; "
                    "only agents with the same one can share an evaluation"
                )


def _combined(descriptions: Sequence[SystemDescription]) -> SystemDescription:
    """Returns the common description of several agents that ran one evaluation.

    The names of agents, machines and processors are joined with commas; the GPUs of all agents are listed;
    numbers are those of the first agent, and ``threads`` is None if they differ.
    """
    first = descriptions[0]
    if len(descriptions) == 1:
        return first
    threads = {d.threads for d in descriptions}
    machines = [d.environment for d in descriptions]
    gpus = {gpu.uuid: gpu for machine in machines for gpu in machine.gpus}
    environment = replace(
        machines[0],
        hostname=_joined(m.hostname for m in machines),
        architecture=_joined(m.architecture for m in machines),
        cpu_model=_joined(m.cpu_model for m in machines),
        governor=_joined(m.governor for m in machines if m.governor),
        gpus=tuple(gpus.values()),
    )
    return replace(
        first,
        agent=_joined(d.agent for d in descriptions),
        threads=first.threads if len(threads) == 1 else None,
        environment=environment,
    )


def _joined(values: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(values))
