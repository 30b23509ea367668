"""Dynamic batching: which waiting requests are predicted together, and when their batch begins.

This module contains the options of batching; the queue policies, which apply if requests wait too long or are
too many; and the queue of a model whose requests have priorities, as in Triton's dynamic batcher. The
policies have the names and the meaning of ``ModelQueuePolicy`` in Triton's model configuration:
https://github.com/triton-inference-server/common/blob/main/protobuf/model_config.proto
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import Enum
from queue import Empty, Queue
from typing import Any, Generic, TypeVar

from inferometer.agent.serving.request_queue import (
    MAX_WAITING_BYTES,
    NS_PER_S,
    QueuedRequest,
    Request,
    RequestQueue,
)
from inferometer.manifests.errors import ConfigurationError, QueueFullError, one_line, suggestion

MAX_LEVELS = 1000
NS_PER_US = 1000
_MAX_US = 10 * 365 * 24 * 3600 * 1_000_000
_MAX_SIZE = 2**32 - 1
_TRUTHS = {"true": True, "false": False}


class TimeoutAction(str, Enum):
    """The action taken on a request whose timeout has expired in the queue."""

    REJECT = "REJECT"
    DELAY = "DELAY"
    """It waits until no other request of its priority or a higher one is waiting within its timeout."""


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """The policy of the requests of one priority.

    Attributes:
        timeout_action: What happens to a request whose timeout has expired.
        default_timeout_microseconds: How long a request waits for its batch to begin; 0 sets no timeout.
        allow_timeout_override: Whether a request can set a shorter timeout. Triton's own default is false.
        max_queue_size: The maximum number of waiting requests; 0 means ``BatchingOptions.max_queue``.
    """

    timeout_action: TimeoutAction = TimeoutAction.REJECT
    default_timeout_microseconds: int = 0
    allow_timeout_override: bool = True
    max_queue_size: int = 0

    @classmethod
    def parse(cls, text: str, option: str) -> QueuePolicy:
        """Parses comma-separated ``name=value`` pairs; raises ConfigurationError for ``option``."""
        names = [field.name for field in fields(cls)]
        found: dict[str, Any] = {}
        for part in text.split(","):
            name, mark, value = (each.strip() for each in part.partition("="))
            if not mark or name not in names:
                raise ConfigurationError(
                    f'{option}: found "{one_line(part, 60)}"; give NAME=VALUE with commas between; '
                    f"{suggestion(name, names)}"
                )
            if name in found:
                raise ConfigurationError(f"{option}: has {name} twice")
            found[name] = _value(name, value, option)
        return cls(**found)

    @property
    def delays(self) -> bool:
        """Whether a request whose timeout has expired continues to wait behind the others."""
        return self.timeout_action is TimeoutAction.DELAY

    def timeout_ns(self, asked_ns: int | None) -> int | None:
        """Returns how long a request may wait in the queue, given its own timeout; None sets no limit."""
        default_ns = self.default_timeout_microseconds * NS_PER_US or None
        if asked_ns is None or not self.allow_timeout_override:
            return default_ns
        return asked_ns if default_ns is None else min(asked_ns, default_ns)


DEFAULT_POLICY = QueuePolicy()


def parse_priority_policy(text: str) -> tuple[int, QueuePolicy]:
    """Parses the policy of one priority, ``LEVEL:NAME=VALUE,…``; raises ConfigurationError if invalid."""
    level, mark, policy = text.partition(":")
    if not mark or not re.fullmatch(r"[0-9]{1,9}", level.strip()):
        raise ConfigurationError(
            f'priority_queue_policy: found "{one_line(text, 60)}"; give LEVEL:NAME=VALUE, such as '
            "1:max_queue_size=100"
        )
    return int(level), QueuePolicy.parse(policy, "priority_queue_policy")


def _value(name: str, text: str, option: str) -> object:
    match name:
        case "timeout_action":
            if text.upper() in TimeoutAction.__members__:
                return TimeoutAction[text.upper()]
            allowed = " or ".join(TimeoutAction.__members__)
        case "allow_timeout_override":
            if text.lower() in _TRUTHS:
                return _TRUTHS[text.lower()]
            allowed = " or ".join(_TRUTHS)
        case _:
            most = _MAX_SIZE if name == "max_queue_size" else _MAX_US
            if re.fullmatch(r"[0-9]{1,18}", text) and int(text) <= most:
                return int(text)
            allowed = f"a whole number from 0 to {most}"
    raise ConfigurationError(f'{option}: {name} is "{one_line(text, 40)}"; allowed: {allowed}')


MAX_INLINE_US = 10_000.0
MAX_INSTANCES = 64
_NS_PER_MS = 1_000_000
_Request = TypeVar("_Request", bound=QueuedRequest)


@dataclass(frozen=True, slots=True)
class BatchingOptions:
    """How requests are batched.

    Attributes:
        max_batch_size: The maximum number of inputs in a batch; 1 predicts each request alone.
        max_queue_delay_ms: How long the first request of a batch waits for others, in milliseconds.
        preferred_batch_sizes: A batch of one of these sizes does not wait for further requests.
        max_queue: The maximum number of waiting requests of a priority; a further one is refused.
        priority_levels: The number of priorities, of which 1 is the highest; 0 for none.
        default_priority_level: The priority of requests without one.
        default_queue_policy: What happens to requests that wait too long or are too many.
        priority_queue_policy: The policies of individual priorities.
        inline_predict_us: The mean processor time of a prediction of one input, in microseconds, up to which
            a request that need not wait is predicted on the event loop, without a thread switch; 0 for never.
            Applies to models whose predictor allows it (``Predictor.any_thread``), and only without a
            ``max_queue_delay_ms``.
        instances: The number of instances of the model, which take batches from one queue and predict them at
            the same time.
        pin: Whether each instance is bound to cores of its own, as many as it has threads.

    Raises:
        ConfigurationError: A number is out of its range, a preferred size exceeds the maximum batch size, or
            a priority is not one of the levels.
    """

    max_batch_size: int = 1
    max_queue_delay_ms: float = 0.0
    preferred_batch_sizes: tuple[int, ...] = ()
    max_queue: int = 10_000
    priority_levels: int = 0
    default_priority_level: int = 0
    default_queue_policy: QueuePolicy = DEFAULT_POLICY
    priority_queue_policy: tuple[tuple[int, QueuePolicy], ...] = ()
    inline_predict_us: float = 150.0
    instances: int = 1
    pin: bool = False

    def __post_init__(self) -> None:
        for name in ("max_batch_size", "max_queue"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if not 1 <= self.instances <= MAX_INSTANCES:
            raise ConfigurationError(f"instances is {self.instances}; allowed: 1 to {MAX_INSTANCES}")
        if not 0 <= self.max_queue_delay_ms < float("inf"):
            raise ConfigurationError(
                f"max_queue_delay_ms is {self.max_queue_delay_ms:g}; it must be at least 0"
            )
        if not 0 <= self.inline_predict_us <= MAX_INLINE_US:
            raise ConfigurationError(
                f"inline_predict_us is {self.inline_predict_us:g}; allowed: 0 to {MAX_INLINE_US:g}, since "
                "all other calls wait that long"
            )
        for size in self.preferred_batch_sizes:
            if not 1 <= size <= self.max_batch_size:
                raise ConfigurationError(
                    f"preferred_batch_sizes has {size}; allowed: 1 to max_batch_size, {self.max_batch_size}"
                )
        self._check_priorities()

    def _check_priorities(self) -> None:
        levels, default = self.priority_levels, self.default_priority_level
        if not 0 <= levels <= MAX_LEVELS:
            raise ConfigurationError(f"priority_levels is {levels}; allowed: 0 to {MAX_LEVELS}")
        if not (1 <= default <= levels if levels else default == 0):
            allowed = f"1 to priority_levels, {levels}" if levels else "none without priority_levels"
            raise ConfigurationError(f"default_priority_level is {default}; allowed: {allowed}")
        chosen = [level for level, _ in self.priority_queue_policy]
        for level in chosen:
            if not 1 <= level <= levels:
                allowed = f"1 to priority_levels, {levels}" if levels else "none without priority_levels"
                raise ConfigurationError(f"priority_queue_policy has level {level}; allowed: {allowed}")
            if chosen.count(level) > 1:
                raise ConfigurationError(f"priority_queue_policy has level {level} twice")

    @property
    def has_policies(self) -> bool:
        """Whether requests have priorities or a policy other than the default."""
        return self.priority_levels > 0 or self.default_queue_policy != DEFAULT_POLICY

    def level_of(self, priority: int) -> int:
        """Returns a priority's level: the default for 0 and, as in Triton, for one beyond the levels."""
        return priority if 1 <= priority <= self.priority_levels else self.default_priority_level or 1

    def policy_of(self, level: int) -> QueuePolicy:
        """Returns the policy of a level."""
        return dict(self.priority_queue_policy).get(level, self.default_queue_policy)

    def max_queue_of(self, level: int) -> int:
        """Returns the maximum number of waiting requests of a level."""
        return self.policy_of(level).max_queue_size or self.max_queue


class Batcher(Generic[_Request]):
    """Assembles batches, for one thread at a time.

    A batch begins as soon as ``max_batch_size`` inputs wait, or its first request has waited for
    ``max_queue_delay_ms``; if that is 0, it contains all requests that wait when the model is free. A batch
    also begins as soon as the waiting requests add up to a preferred size, the largest possible one. Requests
    keep their order and are not split: a request that does not fit begins the next batch. A request above the
    maximum batch size is a batch of its own. With ``form_of``, only requests of equal form are batched: as in
    Triton's dynamic batcher, a request of another form ends the wait and begins the next batch.
    """

    def __init__(
        self,
        options: BatchingOptions,
        clock: Callable[[], int],
        queue: RequestQueue[_Request],
        form_of: Callable[[_Request], object] | None = None,
    ) -> None:
        self._max = options.max_batch_size
        self._preferred = frozenset(options.preferred_batch_sizes)
        self._delay_ns = round(options.max_queue_delay_ms * _NS_PER_MS)
        self._clock = clock
        self._queue = queue
        self._form_of = form_of
        self._put_back: deque[_Request] = deque()
        self._ended = False

    def next(self) -> list[_Request] | None:
        """Waits for the next batch; returns None at an end mark, after any batch that is being filled."""
        if self._max == 1:
            waiting = self._queue.get()
            return None if waiting is None else [waiting]
        take, wanted = self._take, self._queue.wanted
        while (first := take(None)) is not None and not wanted(first):
            pass
        if first is None:
            self._ended = False
            return None
        batch, size, form_of = [first], first.inputs, self._form_of
        form = form_of and form_of(first)
        due_ns = first.came_ns + self._delay_ns
        left_ns = due_ns - self._clock()
        preferred = 0  # requests at the beginning of the batch that have a preferred size together
        while size < self._max:
            if size in self._preferred:
                preferred, left_ns = len(batch), 0
            try:
                waiting = take(left_ns)  # without time left, what waits already is still taken
            except Empty:
                break
            if waiting is None:
                break
            if left_ns > 0:
                left_ns = due_ns - self._clock()
            if not wanted(waiting):
                continue
            if form_of is not None and form_of(waiting) != form:
                self._put_back.appendleft(waiting)
                break
            size += waiting.inputs
            if size > self._max:
                self._put_back.appendleft(waiting)
                break
            batch.append(waiting)
        if preferred and size != self._max and self._clock() < due_ns:
            self._put_back.extendleft(reversed(batch[preferred:]))
            del batch[preferred:]
        return batch

    def _take(self, timeout_ns: int | None) -> _Request | None:
        """Returns the next request that was put back or is waiting; None at an end mark."""
        if self._put_back:
            return self._put_back.popleft()
        if self._ended:
            return None
        if timeout_ns is None:
            waiting = self._queue.get()
        else:
            waiting = self._queue.get(timeout_ns > 0, timeout_ns / NS_PER_S)
        self._ended = waiting is None
        return waiting


class PriorityQueue(RequestQueue[Request]):
    """Returns requests of level 1 before those of level 2, and so on, and in order within a level.

    Each level has the limit of its policy; the memory limit applies to all levels together.
    """

    def __init__(
        self,
        options: BatchingOptions,
        model: str,
        clock: Callable[[], int],
        max_bytes: int = MAX_WAITING_BYTES,
    ) -> None:
        super().__init__(0, model, clock, max_bytes)
        self._options = options
        levels = max(1, options.priority_levels)
        self._limits = [options.max_queue_of(level) for level in range(1, levels + 1)]
        self._limit = sum(self._limits)
        self._waiting_at = [0] * levels
        self._use(_Levels(levels, clock))

    def put(self, request: Request) -> None:
        """Adds a request, with the place and timeout that its level implies; see ``RequestQueue``."""
        level = self._options.level_of(request.priority)
        request.priority = level
        policy = self._options.policy_of(level)
        timeout_ns = policy.timeout_ns(request.timeout_ns)
        if timeout_ns is not None and policy.delays:
            request.delayed_ns = request.came_ns + timeout_ns
        elif timeout_ns is not None:
            request.rejected_ns = request.came_ns + timeout_ns
        with self._lock:
            if self._waiting_at[level - 1] >= self._limits[level - 1]:
                raise QueueFullError(
                    f"model {self._model}: its queue of {self._limits[level - 1]} requests of priority "
                    f"{level} is full; try again later"
                )
            self._waiting_at[level - 1] += 1
        try:
            super().put(request)
        except BaseException:
            self._gone(request)
            raise

    def wanted(self, request: Request) -> bool:
        """Extends ``RequestQueue.wanted``: a request that its timeout rejects is not predicted either."""
        if request.rejected_ns is not None and self._clock() >= request.rejected_ns and self.leave(request):
            request.fail(self.expired())
            return False
        return super().wanted(request)

    def begin(self, requests: list[Request]) -> list[Request]:
        """Begins a batch; see ``RequestQueue``."""
        begun = super().begin(requests)
        for request in begun:
            self._gone(request)
        return begun

    def leave(self, request: Request) -> bool:
        """Removes a request if its batch has not begun; returns whether it did."""
        if not super().leave(request):
            return False
        self._gone(request)
        return True

    def _gone(self, request: Request) -> None:
        with self._lock:
            self._waiting_at[request.priority - 1] -= 1


class _Levels(Queue[Request | None]):
    """A queue that orders requests by level; None, the end mark, comes last."""

    def __init__(self, levels: int, clock: Callable[[], int]) -> None:
        super().__init__()
        self._clock = clock
        self._fresh: list[deque[Request]] = [deque() for _ in range(levels)]
        self._delayed: list[deque[Request]] = [deque() for _ in range(levels)]
        self._size = 0

    def _qsize(self) -> int:
        return self._size

    def _put(self, item: Request | None) -> None:
        self._size += 1
        if item is not None:
            self._fresh[item.priority - 1].append(item)

    def _get(self) -> Request | None:
        self._size -= 1
        for fresh, delayed in zip(self._fresh, self._delayed, strict=True):
            while fresh:
                request = fresh.popleft()
                if request.delayed_ns is None or self._clock() < request.delayed_ns:
                    return request
                delayed.append(request)
            if delayed:
                return delayed.popleft()
        return None
