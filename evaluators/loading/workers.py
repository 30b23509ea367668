"""The workers of a loader in this process: its threads, or the caller's own thread."""

from __future__ import annotations

from abc import abstractmethod
from concurrent.futures import Future, ThreadPoolExecutor, wait

from inferometer.agent.closeable import Closeable
from inferometer.evaluators.loading.samples import FilledRows, SampleFiller, Task


class Workers(Closeable):
    """The interface of workers that fill rows, in the background or on demand. Used from one thread.

    After an exception of another kind than ``InferometerError``, such as KeyboardInterrupt, or after the loss
    of a worker process, it can only be closed.
    """

    @abstractmethod
    def submit(self, task: Task) -> None:
        """Accepts a task, whose number must be higher than those before."""

    @abstractmethod
    def result(self, task: Task) -> FilledRows:
        """Waits for a task that was submitted, and returns its result, once.

        Raises:
            DatasetError: The dataset is damaged, or a worker process was lost.
        """

    @abstractmethod
    def cancel(self) -> None:
        """Drops all tasks that were submitted, and returns when no row is written any more.

        Raises:
            DatasetError: A worker process was lost.
        """

    @property
    def processes(self) -> tuple[int, ...]:
        """The ids of the worker processes; empty for threads."""
        return ()


class CallingThread(Workers):
    """The caller's thread, which fills rows on demand."""

    def __init__(self, filler: SampleFiller) -> None:
        self._filler = filler

    def submit(self, task: Task) -> None:
        """Does nothing yet."""

    def result(self, task: Task) -> FilledRows:
        """Fills the rows."""
        return self._filler.fill(task)

    def cancel(self) -> None:
        """Does nothing: no task is in progress."""

    def close(self) -> None:
        """Does nothing."""


class WorkerThreads(Workers):
    """Threads of this process; decoders and NumPy release the interpreter's lock.

    Args:
        filler: Fills rows, in several threads at once.
        count: The number of threads.
    """

    def __init__(self, filler: SampleFiller, count: int) -> None:
        self._filler = filler
        self._executor = ThreadPoolExecutor(count, thread_name_prefix="load")
        self._futures: dict[int, Future[FilledRows]] = {}
        self._cancelled_below = 0

    def submit(self, task: Task) -> None:
        """Queues the task."""
        self._futures[task.number] = self._executor.submit(self._fill, task)

    def result(self, task: Task) -> FilledRows:
        """Waits for the task."""
        return self._futures.pop(task.number).result()

    def cancel(self) -> None:
        """Cancels what waits, and waits for the samples in progress."""
        futures, self._futures = self._futures, {}
        if futures:
            self._cancelled_below = max(futures) + 1
        for future in futures.values():
            future.cancel()
        wait(futures.values())

    def close(self) -> None:
        """Ends the threads."""
        self.cancel()
        self._executor.shutdown()

    def _fill(self, task: Task) -> FilledRows:
        return self._filler.fill(task, lambda: task.number < self._cancelled_below)
