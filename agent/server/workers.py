"""Several workers behind one port: processes with an agent each, and their parent, which links them.

Each worker listens on the same ports, and the kernel gives each connection to one of them. The parent holds
the ports, so that nobody else takes them, but accepts no connections. Calls that concern all workers reach
them through the parent, and their answers become one.
"""

from __future__ import annotations

import itertools
import logging
import os
import pickle
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError  # another class in Python 3.10
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any

from inferometer.agent.server.admission import bound, check_exposure, join_address
from inferometer.agent.server.calls import CallContext, Method
from inferometer.agent.server.joined_answers import CHANGING, JOINED
from inferometer.agent.server.observation import SummedMetrics
from inferometer.agent.server.server import AgentServer, ServerOptions
from inferometer.manifests.errors import AgentError, ConfigurationError, InferometerError, RegionExistsError

_THREADS = 48  # more than a worker has for calls, each of which may ask the parent
_READ_S = 5.0
_LEAVING_S = 15.0
"""How long a worker may take to stop after its grace period."""
_STEADY_S = 60.0
"""A worker that dies sooner after its start is replaced later and later."""
_LONGEST_PAUSE_S = 30.0
_log = logging.getLogger(__name__)


class Link:
    """One end of the connection between a worker and its parent; each calls methods of the other ``target``.

    Once the other end is gone, calls that wait for it fail with the error that ``lost`` returns, which is
    called once. Thread-safe.
    """

    def __init__(self, connection: Connection, target: object, lost: Callable[[], AgentError]) -> None:
        self._connection = connection
        self._target = target
        self._lost = lost
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._asked: dict[int, Future[Any]] = {}
        self._failure: AgentError | None = None
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="worker-link")
        threading.Thread(target=self._listen, name="worker-link", daemon=True).start()

    def ask(self, name: str, *given: Any) -> Future[Any]:
        """Calls a method of the other end without waiting; its arguments and its result are pickled."""
        future: Future[Any] = Future()
        with self._lock:
            if self._failure is not None:
                future.set_exception(self._failure)
                return future
            number = next(self._numbers)
            self._asked[number] = future
        self._send(number, name, given)
        return future

    def _send(self, *message: Any) -> None:
        with self._lock, suppress(OSError):  # the other end is gone, as the listener finds
            self._connection.send(message)

    def _listen(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                number, name, given = self._connection.recv()
                if name is not None:
                    self._threads.submit(self._answer, number, name, given)
                    continue
                result, error = given
                asked = self._asked.pop(number)
                asked.set_result(result) if error is None else asked.set_exception(error)
        failure = self._lost()
        with self._lock:
            self._failure = failure
        for asked in self._asked.values():
            asked.set_exception(failure)
        self._threads.shutdown(wait=False)

    def _answer(self, number: int, name: str, given: Sequence[Any]) -> None:
        try:
            self._send(number, None, (getattr(self._target, name)(*given), None))
        except InferometerError as error:
            self._send(number, None, (None, _portable(error)))
        except Exception as error:  # noqa: BLE001 - the boundary of a call, as the dispatcher's
            _log.error("%s between workers failed", name, exc_info=error)
            failure = AgentError(f"{name} between workers failed: {type(error).__name__}")
            self._send(number, None, (None, failure))


def _portable(error: InferometerError) -> InferometerError:
    """Returns the error, or one with its message if it cannot be pickled, as that of a plug-in may be."""
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - its own
    except Exception:  # noqa: BLE001 - of whatever the error's class does
        return AgentError(str(error))
    return error


class Worker:
    """The agent in the process of a worker, which the parent calls; it is a ``Group`` to its agent.

    ``make`` makes the agent of this group. The process exits at once if its parent is gone.
    """

    def __init__(self, make: Callable[[Worker], AgentServer], connection: Connection) -> None:
        self._make = make
        self._ended = threading.Event()
        self._finished = False
        self._link = Link(connection, self, partial(os._exit, 1))

    def run(self) -> None:
        """Returns when the agent has stopped; exits with 1 if it has not finished its predictions."""
        self._ended.wait()
        if not self._finished:
            logging.shutdown()
            os._exit(1)

    def open(self) -> None:
        """Makes the agent; raises its errors."""
        self._server = self._make(self)
        self._methods = {method.path: method for method in self._server.methods}

    def start(self) -> None:
        """Starts the agent."""
        self._server.start()

    def call(self, path: str, request: bytes, peer: str) -> bytes:
        """Runs a method in this worker alone."""
        method, call = self._methods[path], SimpleNamespace(record=SimpleNamespace(peer=peer))
        behaviour: Callable[..., Any] = method.behaviour
        return method.encode(behaviour(method.decode(request), call))

    def metrics(self) -> list[Any]:
        """Returns the metrics."""
        return list(self._server.metrics())

    def sessions(self) -> int:
        """Returns the number of sessions that clients hold open."""
        return self._server.load.sessions

    def is_in_use(self) -> bool:
        """Returns whether clients use the agent."""
        return self._server.is_in_use

    def stop(self, in_use: bool) -> bool:
        """Stops the agent, and then lets ``run`` return; see ``AgentServer.stop``."""
        self._finished = self._server.stop(in_use=in_use)
        self._ended.set()
        return self._finished

    def shared(self, methods: Sequence[Method]) -> list[Method]:
        """Returns the methods, of which those in ``JOINED`` run in all workers."""
        return [self._everywhere(method) for method in methods]

    def _everywhere(self, method: Method) -> Method:
        name, read = method.path.rpartition("/")[2], method.answer
        join = JOINED.get(name)
        if join is None or read is None:
            return method

        def call(request: Any, call: CallContext) -> Any:
            given = method.path, request.SerializeToString(), call.record.peer
            model = getattr(request, "model_name", "")  # which a later worker has to load, too
            return join([read(answer) for answer in self._link.ask("everywhere", *given, model).result()])

        return replace(method, behaviour=call)

    def in_step(self, longest_s: float) -> None:
        """Waits until every worker has called this as often, but for at most ``longest_s``."""
        with suppress(InferometerError):
            self._link.ask("in_step", longest_s).result()


class _Member:
    """A worker as its parent has it, with what it asks of the parent."""

    def __init__(self, number: int, child: Any, group: Workers) -> None:
        self.number = number
        self.child = child
        self.began_s = time.monotonic()
        self.page: Iterable[Any] = ()
        self.steps = 0
        self._group = group
        self.link = Link(child.connection, self, partial(group.lost, self))

    def everywhere(self, *call: Any) -> list[bytes]:
        return self._group.everywhere(self, *call)

    def in_step(self, longest_s: float) -> None:
        self._group.wait_in_step(self, longest_s)


class Workers:
    """An agent of several workers, from ``start`` to ``stop``; ``serve`` runs it like an ``AgentServer``.

    A worker that dies is replaced, at first at once and then with growing pauses. Its successor loads what
    clients have loaded.

    Args:
        options: The options of each worker; port 0 selects a free port for all.
        count: The number of workers.
        begin: Starts the process of a worker, which runs ``Worker.run``, given its number and options.

    Raises:
        ConfigurationError: An address cannot be bound, or the options are not safe; see ``AgentServer``.
    """

    def __init__(
        self, options: ServerOptions, count: int, begin: Callable[[int, ServerOptions], Any]
    ) -> None:
        if sys.platform != "linux":
            raise ConfigurationError("--workers requires Linux, which distributes connections over processes")
        secure, secret = options.tls is not None, options.secret is not None
        self._warning = check_exposure(options.host, tls=secure, secret=secret, insecure=options.insecure)
        self._count = count
        self._begin_process = begin
        self._changed = threading.Condition()
        self._changing = threading.Lock()
        self._stopping = threading.Event()
        self._begun: set[_Member] = set()
        self._live: dict[int, _Member] = {}
        self._early_ends: Counter[int] = Counter()
        self._loads: dict[str, tuple[str, bytes]] = {}
        self._departed: Iterable[Any] = ()
        self._metrics: SummedMetrics | None = None
        self.http_url: str | None = None
        """The URL of the HTTP server; None if there is none."""
        self.http_port = options.http_port
        """The port of the HTTP server; None if there is none."""
        with ExitStack() as held:
            port = held.enter_context(_held(options.host, options.port)).getsockname()[1]
            if self.http_port is not None:
                advice = "; choose another --http_port, or 0 for a free one"
                holder = held.enter_context(_held(options.host, self.http_port, " for HTTP", advice))
                self.http_port = int(holder.getsockname()[1])
                self.http_url = f"http{'s' * secure}://{join_address(options.host, self.http_port)}"
            if options.metrics_port is not None:
                self._metrics = SummedMetrics(options.metrics_host, options.metrics_port, self._pages)
                held.callback(self._metrics.close)
            self._held = held.pop_all()
        self._options = replace(options, port=port, http_port=self.http_port)

    def load(self) -> Any:
        """Returns the number of sessions that clients hold open, as ``sessions`` of an ``AgentLoad``."""
        with suppress(AgentError):
            return SimpleNamespace(sessions=sum(self._answers("sessions")))
        return SimpleNamespace(sessions=0)

    @property
    def address(self) -> str:
        """The address that the workers listen on, as ``host:port``."""
        return join_address(self._options.host, self._options.port)

    @property
    def metrics_url(self) -> str | None:
        """The URL of the summed metrics; None if they are not served."""
        return None if self._metrics is None else self._metrics.url

    def start(self) -> None:
        """Starts the workers, and returns when all of them answer calls; raises the errors of each."""
        members = [self._begin(number) for number in range(1, self._count + 1)]
        try:
            for step in ("open", "start"):
                for asked in [member.link.ask(step) for member in members]:
                    asked.result()
        except BaseException:
            self._end()
            raise
        with self._changed:
            self._live = {each.number: each for each in members}
        for gone in self._live.keys() - {each.number for each in self._begun}:
            self.lost(self._live[gone])
        if self._metrics is not None:
            self._metrics.start()
        if self._warning:
            _log.warning("%s", self._warning)

    def stop(self) -> bool:
        """Stops all workers within the grace period; returns whether each has finished what it accepted."""
        self._stopping.set()
        members, in_use = self._members(), True
        with suppress(AgentError):
            in_use = any(self._answers("is_in_use"))
        end_s = time.monotonic() + self._options.grace_s + _LEAVING_S
        finished = True
        for asked in [member.link.ask("stop", in_use) for member in members]:
            try:
                finished &= asked.result(max(0.0, end_s - time.monotonic()))
            except (InferometerError, FutureTimeoutError):
                finished = False
        self._end(_READ_S)
        return finished

    def _end(self, wait_s: float = 0.0) -> None:
        """Ends the processes, killing those that do not end by themselves in time, and frees the ports."""
        self._stopping.set()
        end_s = time.monotonic() + wait_s
        with self._changed:
            begun = list(self._begun)
        for member in begun:
            member.child.join(end_s - time.monotonic())
        for member in begun:
            member.child.process.kill()
            member.child.process.join()
        self._held.close()

    def _begin(self, number: int) -> _Member:
        with self._changed:
            if self._stopping.is_set():
                raise AgentError("the agent is stopping")
            member = _Member(number, self._begin_process(number, self._options), self)
            self._begun.add(member)
        return member

    def lost(self, member: _Member) -> AgentError:
        """Has a worker replaced that has ended; returns the error of the calls that wait for it."""
        with self._changed:
            self._begun.discard(member)
            was_live = self._live.get(member.number) is member
            if was_live:
                del self._live[member.number]
                if self._metrics is not None:
                    self._departed = self._metrics.counted((self._departed, member.page))
            self._changed.notify_all()
        line = member.child.early_end()
        if was_live and not self._stopping.is_set():
            threading.Thread(target=self._replace, args=(member, line), daemon=True).start()
        return AgentError(line)

    def _replace(self, member: _Member, line: str) -> None:
        number = member.number
        while True:
            is_early = time.monotonic() - member.began_s < _STEADY_S
            self._early_ends[number] = early = self._early_ends[number] + 1 if is_early else 0
            pause_s = min(2.0 ** (early - 2), _LONGEST_PAUSE_S) if early > 1 else 0.0
            _log.warning("%s; another one starts in %g s", line, pause_s)
            self._stopping.wait(pause_s)
            try:
                member = self._begin(number)
                member.link.ask("open").result()
                with self._changing:
                    self._load_again(member)
                    member.link.ask("start").result()
                    with self._changed:
                        if not self._stopping.is_set():
                            self._live[number] = member
                return
            except InferometerError as error:
                if self._stopping.is_set():
                    return
                member.child.process.kill()
                line = f"worker {number} cannot start: {error}"

    def everywhere(self, origin: _Member, path: str, request: bytes, peer: str, model: str) -> list[bytes]:
        """Runs a method in all workers, and returns their answers, the first of them that of ``origin``.

        What changes a worker runs first in ``origin``, and only then in the others.
        """
        method = path.rpartition("/")[2]
        if method not in CHANGING:
            return self._answers("call", path, request, peer)
        with self._changing:
            found = [origin.link.ask("call", path, request, peer).result()]
            if method == "RepositoryModelUnload":
                self._loads.pop(model, None)
            elif model:
                self._loads[model] = path, request
            others = [member for member in self._members() if member is not origin]
            for asked in [member.link.ask("call", path, request, peer) for member in others]:
                # it is gone, and its successor loads the model; or a successor alone did not know the region
                with suppress(AgentError, RegionExistsError):
                    found.append(asked.result())
            return found

    def wait_in_step(self, member: _Member, longest_s: float) -> None:
        """Waits until every worker has got as far, but not longer: one may have a prediction that hangs."""
        with self._changed:
            member.steps = steps = member.steps + 1
            self._changed.notify_all()
            live = self._live.values()
            self._changed.wait_for(lambda: all(each.steps >= steps for each in live), longest_s)

    def _members(self) -> list[_Member]:
        with self._changed:
            return list(self._live.values())

    def _answers(self, name: str, *given: Any) -> list[Any]:
        """Calls a method of all workers, and returns the results of those that live."""
        found = []
        for member, asked in [(member, member.link.ask(name, *given)) for member in self._members()]:
            try:
                found.append(asked.result(_READ_S))
            except FutureTimeoutError:
                raise AgentError(f"worker {member.number} has not answered within {_READ_S:g} s") from None
            except AgentError:
                if member in self._members():
                    raise
        return found

    def _pages(self) -> list[Iterable[Any]]:
        """Returns the last known metrics of each worker, and the counts of dead workers."""
        with self._changed:
            members, departed = list(self._live.values()), self._departed
        for member, asked in [(member, member.link.ask("metrics")) for member in members]:
            with suppress(InferometerError, FutureTimeoutError):
                member.page = asked.result(_READ_S)
        return [departed, *(member.page for member in members)]

    def _load_again(self, member: _Member) -> None:
        for path, request in self._loads.values():
            try:
                member.link.ask("call", path, request, "").result()
            except InferometerError as error:
                _log.warning("worker %d: %s", member.number, error)


def _held(host: str, port: int, purpose: str = "", advice: str = "") -> socket.socket:
    """Returns a socket that holds a port beside the workers without accepting connections.

    Raises ConfigurationError if somebody else listens there, or holds it likewise.
    """
    with bound(host, port, purpose, advice, backlog=1) as alone:
        address, family = alone.getsockname(), alone.family
    held = socket.socket(family, socket.SOCK_STREAM)
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(address)
        # from now on nobody binds the port unless with SO_REUSEPORT
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    except OSError as error:
        held.close()
        where = join_address(host, port) + purpose
        raise ConfigurationError(f"cannot listen on {where}: {error.strerror}") from error
    return held
