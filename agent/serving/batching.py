"""Dynamic batching: which waiting requests are predicted together, and when their batch begins."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty
from typing import Generic, TypeVar

from inferometer.agent.serving.queue_policy import DEFAULT_POLICY, MAX_LEVELS, QueuePolicy
from inferometer.agent.serving.request_queue import QueuedRequest, RequestQueue
from inferometer.manifests.errors import ConfigurationError

MAX_INLINE_US = 10_000.0
_NS_PER_S = 1_000_000_000
_NS_PER_MS = 1_000_000
_Request = TypeVar("_Request", bound=QueuedRequest)


@dataclass(frozen=True, slots=True)
class BatchingOptions:
    """How requests are batched.

    Attributes:
        max_batch_size: The most inputs of a batch; 1 predicts each request by itself.
        max_queue_delay_ms: How long the first request of a batch waits for others, in milliseconds.
        preferred_batch_sizes: A batch of one of these sizes waits no longer for others.
        max_queue: The most requests of a priority that wait for their batch to begin; one more is refused.
        priority_levels: How many priorities there are, of which 1 is the highest; 0 for none.
        default_priority_level: That of requests without one.
        default_queue_policy: What becomes of requests that wait too long or are too many.
        priority_queue_policy: The same for single priorities.
        inline_predict_us: Up to what mean processor time of a prediction of one input, in microseconds, a
            request that need not wait is predicted on the event loop, without a change of threads; 0 for
            never. It holds for models whose predictor allows it (``Predictor.any_thread``), and without a
            ``max_queue_delay_ms``.

    Raises:
        ConfigurationError: A number is too small, a preferred size is more than a batch may have, or a
            priority is none of the levels.
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

    def __post_init__(self) -> None:
        for name in ("max_batch_size", "max_queue"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name} is {getattr(self, name)}; it must be at least 1")
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
        """Whether requests differ in priority, or wait by another policy than the default."""
        return self.priority_levels > 0 or self.default_queue_policy != DEFAULT_POLICY

    def level_of(self, priority: int) -> int:
        """Returns the level of a request's priority: the default for 0, and as in Triton for one too many."""
        return priority if 1 <= priority <= self.priority_levels else self.default_priority_level or 1

    def policy_of(self, level: int) -> QueuePolicy:
        """Returns the policy of a level."""
        return dict(self.priority_queue_policy).get(level, self.default_queue_policy)

    def max_queue_of(self, level: int) -> int:
        """Returns the most requests of a level that wait."""
        return self.policy_of(level).max_queue_size or self.max_queue


class Batcher(Generic[_Request]):
    """Puts batches together, for one thread.

    A batch begins as soon as ``max_batch_size`` inputs wait, or its first request has waited for
    ``max_queue_delay_ms``: with 0 it is all that waits when the model is free. A batch also begins as soon as
    the requests that wait make a preferred size: the largest such. Requests keep their order, and each is
    whole in one batch: one that does not fit begins the next batch. One that is larger than a batch may be is
    a batch of its own. With ``form_of``, only requests of equal forms make a batch: as in Triton's dynamic
    batcher, one of another form begins the next batch, for which this one waits no longer.
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
        """Waits for the next batch; None at an end mark, where one that is being filled begins first."""
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
        """The next request, of those that were put back or of those that wait; None at an end mark."""
        if self._put_back:
            return self._put_back.popleft()
        if self._ended:
            return None
        if timeout_ns is None:
            waiting = self._queue.get()
        else:
            waiting = self._queue.get(timeout_ns > 0, timeout_ns / _NS_PER_S)
        self._ended = waiting is None
        return waiting
