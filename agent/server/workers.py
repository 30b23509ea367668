"""Several workers behind one port: processes with an agent each, and their parent, which links them.

Each worker listens on the same ports, and the kernel gives each connection to one of them. The parent holds
the ports, so that nobody else takes them, but accepts no connections. Calls that concern all workers reach
them through the parent, and their answers become one.
"""

from __future__ import annotations

import logging
import os
import pickle
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError  # another class in Python 3.10
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial, reduce
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from inferometer.agent.server import joined_answers as joined
from inferometer.agent.server.admission import bound, check_exposure, join_address
from inferometer.agent.server.calls import CallContext, Method
from inferometer.agent.server.server import AgentServer, Group, ServerOptions
from inferometer.manifests.errors import AgentError, ConfigurationError, InferometerError, RegionExistsError

if TYPE_CHECKING:
    from inferometer.agent.server.metrics import MetricsServer

_THREADS = 48  # more than a worker has for calls, each of which may ask the parent
_READ_S = 2.0
"""How long calls wait for a worker that does not answer: less than ``agent status`` waits for the agent."""
_SOON_S = 1.0
"""How long the metrics page and a stop wait for it."""
_SILENT_S = 15.0
"""How long a call that changes a worker waits while the worker answers nothing at all: importing a framework
may keep it busy for seconds."""
_LEAVING_S = 6.0
"""How long a worker may take to stop after its grace period."""
_STEADY_S = 60.0
"""A worker that dies sooner after its start is replaced later and later."""
_LONGEST_PAUSE_S = 30.0
_log = logging.getLogger(__name__)


class Link:
    """One end of the connection between a worker and its parent; each calls what the other ``offers``.

    Once the other end is gone, ``lost`` is called and returns the error of all calls, which is then the
    result of ``ended``. Thread-safe.
    """

    def __init__(
        self, connection: Connection, offers: Mapping[str, Callable[..., Any]], lost: Callable[[], AgentError]
    ) -> None:
        self.ended: Future[AgentError] = Future()
        self._connection = connection
        self._offers = offers
        self._lost = lost
        self._lock = threading.Lock()
        self._asked: dict[int, Future[Any]] = {}
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="worker-link")
        threading.Thread(target=self._listen, name="worker-link", daemon=True).start()

    def ask(self, name: str, *given: Any) -> Future[Any]:
        """Calls a function of the other end without waiting; its arguments and its result are pickled."""
        future: Future[Any] = Future()
        with self._lock:
            if self.ended.done():
                future.set_exception(self.ended.result())
                return future
            self._asked[id(future)] = future
        self._send(id(future), name, given)
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
            self.ended.set_result(failure)
        for asked in self._asked.values():
            asked.set_exception(failure)
        self._threads.shutdown(wait=False)

    def _answer(self, number: int, name: str, given: Sequence[Any]) -> None:
        result, failure = None, None
        try:
            result = self._offers[name](*given)
        except InferometerError as error:
            failure = _portable(error)
        except Exception as error:  # noqa: BLE001 - the boundary of a call, as the dispatcher's
            _log.error("%s between workers failed", name, exc_info=error)
            failure = AgentError(f"{name} between workers failed: {type(error).__name__}")
        self._send(number, None, (result, failure))


def _portable(error: InferometerError) -> InferometerError:
    """Returns the error, or one with its message if it cannot be pickled, as that of a plug-in may be."""
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - its own
    except Exception:  # noqa: BLE001 - of whatever the error's class does
        return AgentError(str(error))
    return error


class Worker(Group):
    """The agent in the process of a worker, which serves its parent.

    ``make`` makes the agent of this group. The process ends when its parent kills it or is gone.
    """

    def __init__(self, make: Callable[[Group], AgentServer], connection: Connection) -> None:
        self._make = make
        self._offers: dict[str, Callable[..., Any]] = {"open": self._open}
        self._link = Link(connection, self._offers, partial(os._exit, 1))

    def _open(self) -> None:
        server = self._make(self)
        methods = {method.path: method for method in server.methods}

        def call(path: str, request: bytes, peer: str) -> bytes:
            """Runs a method in this worker alone."""
            method, context = methods[path], SimpleNamespace(record=SimpleNamespace(peer=peer))
            behaviour: Callable[..., Any] = method.behaviour
            return method.encode(behaviour(method.decode(request), context))

        self._offers |= {"start": server.start, "call": call, "metrics": server.metrics}
        self._offers |= {"sessions": lambda: server.load.sessions, "is_in_use": lambda: server.is_in_use}
        self._offers |= {"stop": lambda in_use: server.stop(in_use=in_use)}

    is_shared = True

    def shared(self, methods: list[Method]) -> list[Method]:
        """Returns the methods, of which those in ``JOINED`` run in all workers."""
        return [self._everywhere(method) if method.path in joined.JOINED else method for method in methods]

    def _everywhere(self, method: Method) -> Method:
        def call(request: Any, call: CallContext) -> Any:
            given = method.path, request.SerializeToString(), call.record.peer
            model = getattr(request, "model_name", "")  # which a later worker has to load or unload, too
            answers: Sequence[bytes] = self._link.ask("everywhere", *given, model).result()
            return reduce(joined.join, map(method.answer, answers))

        return replace(method, behaviour=call)

    def in_step(self, longest_s: float) -> None:
        """Waits until every worker has called this as often, but for at most ``longest_s``."""
        with suppress(InferometerError):
            self._link.ask("in_step", longest_s).result()


def run_worker(make: Callable[..., AgentServer], options: ServerOptions, connection: Connection) -> None:
    """Runs a worker in its process, until that is killed; ``make(options, group)`` makes its agent."""
    Worker(partial(make, options), connection)
    threading.Event().wait()


class _Member:
    """A worker as its parent has it."""

    def __init__(self, number: int, child: Any, group: Workers) -> None:
        self.number = number
        self.child = child
        self.page: Iterable[Any] = ()
        self.counts: joined.Counts = {}  # the last known
        self.asked_page: Future[Any] | None = None
        self.late: dict[tuple[str, ...], Future[Any]] = {}
        self.steps = 0
        everywhere, in_step = partial(group.everywhere, self), partial(group.wait_in_step, self)
        offers: dict[str, Callable[..., Any]] = {"everywhere": everywhere, "in_step": in_step}
        self.link = Link(child.connection, offers, partial(group.lost, self))


class Workers:
    """An agent of several workers, from ``start`` to ``stop``; ``serve`` runs it like an ``AgentServer``.

    A worker that dies is replaced, at first at once and then with growing pauses. Its successor loads what
    clients have loaded.

    Args:
        options: The options of each worker; port 0 selects a free port for all.
        count: The number of workers.
        begin: Starts the process of a worker, which runs ``run_worker``, given its number and options.

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
        self._begin = begin
        self._changed = threading.Condition()
        self._changing = threading.Lock()
        self._stopping = threading.Event()
        self._begun: set[_Member] = set()
        self._live: list[_Member] = []
        self.counts: joined.Counts = {}
        """The last known counts of the workers that have died."""
        self._changes: dict[str, tuple[str, bytes]] = {}  # the last of each name, the latest at the end
        self._metrics: MetricsServer | None = None
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
                # loads a library that others do not need
                from inferometer.agent.server.metrics import MetricsServer, SummedPages

                host, self._summed = options.metrics_host, SummedPages(self._pages)
                self._metrics = MetricsServer(self._summed.registry, host, options.metrics_port)
                held.callback(self._metrics.close)
            self._held = held.pop_all()
        self._options = replace(options, port=port, http_port=self.http_port)
        self.address = join_address(options.host, port)
        """The address that the workers listen on, as ``host:port``."""
        self.metrics_url = None if self._metrics is None else self._metrics.url
        """The URL of the summed metrics; None if they are not served."""

    def load(self) -> Any:
        """Returns the number of sessions that clients hold open, as ``sessions`` of an ``AgentLoad``."""
        with suppress(AgentError):
            return SimpleNamespace(sessions=sum(self._answers("sessions").values()))
        return SimpleNamespace(sessions=0)

    def start(self) -> None:
        """Starts the workers, and returns when all of them answer calls; raises the errors of each."""
        with ThreadPoolExecutor(self._count) as threads:
            try:
                members = list(threads.map(self._launch, range(1, self._count + 1)))
            except BaseException:
                self._end()
                raise
        for member in members:
            threading.Thread(target=self._keep, args=(member,), name="keep-worker", daemon=True).start()
        if self._metrics is not None:
            self._metrics.start()
        if self._warning:
            _log.warning("%s", self._warning)

    def stop(self) -> bool:
        """Stops all workers within the grace period; returns whether each has finished what it accepted."""
        self._stopping.set()
        members, in_use, finished = self._members(), True, True
        with suppress(AgentError):
            in_use = any(self._answers("is_in_use", within_s=_SOON_S).values())
        end_s = time.monotonic() + self._options.grace_s + _LEAVING_S
        for asked in [member.link.ask("stop", in_use) for member in members]:
            try:
                finished &= asked.result(max(0.0, end_s - time.monotonic()))
            except (InferometerError, FutureTimeoutError):
                finished = False
        self._end()
        return finished

    def _end(self) -> None:
        """Kills the processes, which have nothing left to do or hang, and frees the ports."""
        self._stopping.set()
        with self._changed:
            begun = list(self._begun)
        for member in begun:
            member.child.process.kill()
            member.child.process.join()
        self._held.close()

    def lost(self, member: _Member) -> AgentError:
        """Removes a worker that has ended; returns the error of the calls that wait for it."""
        with self._changed:
            self._begun.discard(member)
            if member in self._live:
                self._live.remove(member)
                self.counts = joined.add_counts([self.counts, member.counts])
                if self._metrics is not None:
                    self._summed.keep_counts(member.page)
            self._changed.notify_all()
        return AgentError(member.child.early_end(""))

    def _keep(self, member: _Member) -> None:
        """Has a successor take the place of a worker whenever it has ended."""
        early, began_s, error = 0, time.monotonic(), member.link.ended.result()
        while not self._stopping.is_set():
            early = early + 1 if time.monotonic() - began_s < _STEADY_S else 0
            pause_s = min(2.0 ** (early - 2), _LONGEST_PAUSE_S) if early > 1 else 0.0
            _log.warning("%s; another one starts in %g s", error, pause_s)
            self._stopping.wait(pause_s)
            began_s = time.monotonic()
            try:
                error = self._launch(member.number).link.ended.result()
            except InferometerError as failure:
                error = AgentError(f"worker {member.number} cannot start: {failure}")

    def _launch(self, number: int) -> _Member:
        """Starts a worker, which repeats clients' last changes before it listens; raises its errors."""
        with self._changed:
            if self._stopping.is_set():
                raise AgentError("the agent is stopping")
            member = _Member(number, self._begin(number, self._options), self)
            self._begun.add(member)
        try:
            member.link.ask("open").result()
            with self._changing:
                for path, request in self._changes.values():
                    try:
                        self._awaited(member, member.link.ask("call", path, request, ""))
                    except InferometerError as error:
                        _log.warning("worker %d: %s", number, error)
                self._awaited(member, member.link.ask("start"))
                with self._changed:
                    if member in self._begun and not self._stopping.is_set():
                        self._live.append(member)
        except InferometerError:
            member.child.process.kill()
            raise
        return member

    def everywhere(self, origin: _Member, path: str, request: bytes, peer: str, model: str) -> list[bytes]:
        """Runs a method in all workers, and returns their answers.

        What changes a worker runs first in ``origin``, and only then in the others.
        """
        call = "call", path, request, peer
        if path not in joined.CHANGING:
            with self._changed:
                members, kept = list(self._live), self.counts
            found = self._answers(*call) or {origin: origin.link.ask(*call).result()}  # the only one alive
            if path not in joined.COUNTING:
                return [*found.values()]
            answers = [joined.COUNTING[path].FromString(answer) for answer in found.values()]
            dead = (member.counts for member in members if member not in found)
            joined.count_in(answers, joined.add_counts([kept, *dead]))
            if path == joined.STATUS:
                gone = joined.evicted([member.counts for member in found], answers)
                self._keep_counts(lambda counts: {k: n for k, n in counts.items() if k[0] not in gone})
            return [answer.SerializeToString() for answer in answers]
        with self._changing:
            changed = [self._awaited(origin, origin.link.ask(*call))]
            if model:  # unloads too, as "A" may unload what "A@PyTorch" has loaded
                name = model.strip().casefold()
                self._changes.pop(name, None)
                if path.endswith("Unload"):
                    self._keep_counts(partial(joined.without_model, name=name))
                self._changes[name] = path, request
            others = [member for member in self._members() if member is not origin]
            for member, asked in [(member, member.link.ask(*call)) for member in others]:
                try:
                    changed.append(self._awaited(member, asked))
                except RegionExistsError:  # a successor alone did not know the region
                    pass
                except AgentError:
                    if member in self._members():  # otherwise, its successor loads the model
                        raise
            return changed

    def _awaited(self, member: _Member, asked: Future[Any]) -> Any:
        """Returns a worker's answer, or raises AgentError once it answers nothing in ``_SILENT_S``."""
        while True:
            sign = member.link.ask("sessions")
            try:
                return asked.result(_SILENT_S)
            except FutureTimeoutError:
                if not sign.done():
                    raise AgentError(
                        f"worker {member.number} has answered nothing for {_SILENT_S:g} s; a change may "
                        "reach it later"
                    ) from None

    def _keep_counts(self, kept: Callable[[joined.Counts], joined.Counts]) -> None:
        with self._changed:
            holders: list[Workers | _Member] = [self, *self._live]
            for each in holders:
                each.counts = kept(each.counts)

    def _remember(self, member: _Member, kind: Any, asked: Future[Any]) -> None:
        """Keeps what a worker's answer counts; its link calls this before it notices the worker's end."""
        with self._changed, suppress(InferometerError):
            member.counts = {**member.counts, **joined.counts_of(kind.FromString(asked.result()))}

    def wait_in_step(self, member: _Member, longest_s: float) -> None:
        """Waits until every worker has got as far, but not longer: one may have a prediction that hangs."""
        with self._changed:
            member.steps = steps = member.steps + 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: all(each.steps >= steps for each in self._live), longest_s)

    def _members(self) -> list[_Member]:
        with self._changed:
            return list(self._live)

    def _answers(self, name: str, *given: Any, within_s: float = _READ_S) -> dict[_Member, Any]:
        """Calls a function of all workers, and returns the results of those that live.

        Raises AgentError if one does not answer, at once if it still owes an answer to such a call: otherwise
        calls would pile up.
        """
        found, members, end_s = {}, self._members(), time.monotonic() + within_s
        kind = name, *given[:1]
        for member in members:
            if (late := member.late.get(kind)) and not late.done():
                raise AgentError(f"worker {member.number} does not answer")
        calls = [(member, member.link.ask(name, *given)) for member in members]
        if answer := joined.COUNTING.get(kind[-1]):
            for member, asked in calls:
                asked.add_done_callback(partial(self._remember, member, answer))
        for member, asked in calls:
            try:
                found[member] = asked.result(max(0.0, end_s - time.monotonic()))
            except FutureTimeoutError:
                member.late[kind] = asked
                raise AgentError(f"worker {member.number} has not answered within {within_s:g} s") from None
            except AgentError:
                if member in self._members():
                    raise
        return found

    def _pages(self) -> list[Iterable[Any]]:
        members, end_s = self._members(), time.monotonic() + _SOON_S
        for member in members:
            if member.asked_page is None or member.asked_page.done():  # questions would pile up
                member.asked_page = member.link.ask("metrics")
        for member, asked in [(member, member.asked_page) for member in members if member.asked_page]:
            with suppress(InferometerError, FutureTimeoutError):
                member.page = asked.result(max(0.0, end_s - time.monotonic()))
        return [member.page for member in members]


def _held(host: str, port: int, purpose: str = "", advice: str = "") -> socket.socket:
    """Returns a socket that holds a port beside the workers without accepting connections.

    Raises ConfigurationError if somebody else listens there, or holds it likewise.
    """
    with bound(host, port, purpose, advice, backlog=1) as alone:
        port = alone.getsockname()[1]
    held = bound(host, port, purpose, advice, shared=True)
    # from now on nobody binds the port unless with SO_REUSEPORT
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    return held
