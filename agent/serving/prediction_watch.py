"""The watch over the predictions in progress, which detects hanging predictions and lost devices.

Its findings are part of the agent's load, which the metrics and the status report.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from inferometer.agent.inference.predictor import Predictor
from inferometer.agent.preprocessing.inputs import Tensors
from inferometer.agent.serving.observers import PredictionObserver
from inferometer.agent.serving.served_model import LoadedModel
from inferometer.manifests.errors import DeviceLostError, OutOfMemoryError, PredictionError

_NS_PER_S = 1_000_000_000
_CHECKS = 4  # in the time after which a prediction hangs
_LONGEST_PAUSE_S = 1.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Trouble:
    """The reasons why an agent is not fit to serve.

    A lost device is given as its name and a message, a hanging model as its name, the time for which the
    prediction has run, in nanoseconds, and the number of its instances that are alive. False if the agent is
    fit, which a model that hangs does not change while instances are alive.
    """

    lost_devices: tuple[tuple[str, str], ...] = ()
    hanging: tuple[tuple[str, int, int], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.lost_devices) or not all(alive for *_, alive in self.hanging)


class PredictionWatch:
    """Tracks the predictions in progress. Thread-safe.

    A thread checks several times per ``timeout_s`` whether a prediction takes longer than that. Such a
    prediction cannot be cancelled; it is logged, and the agent is not fit to serve until it has ended, unless
    ``alive_of`` returns that instances of the model are alive. A lost device stays lost. When the agent
    becomes fit or unfit, ``on_fitness`` is called with whether it is fit.
    """

    def __init__(
        self,
        timeout_s: float | None = None,
        observers: Sequence[PredictionObserver] = (),
        on_fitness: Callable[[bool], None] = lambda _: None,
        clock: Callable[[], int] = time.perf_counter_ns,
        alive_of: Callable[[str], int] = lambda _: 0,
    ) -> None:
        self._alive_of = alive_of
        self._fit = True
        self.timeout_ns = None if timeout_s is None else int(timeout_s * _NS_PER_S)
        self._observers = tuple(observers)
        self._on_fitness = on_fitness
        self._clock = clock
        self._numbers = itertools.count()
        # Written without the lock: one item is put or taken at a time, which the interpreter does at once.
        self._under_way: dict[int, tuple[str, int, Predictor | None]] = {}
        self._lock = threading.Lock()
        self._reporting = threading.Lock()
        self._hanging: dict[int, str] = {}
        self._lost: dict[str, str] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._look, name="prediction-watch", daemon=True)

    @property
    def timeout_s(self) -> float | None:
        """How long a prediction may take, in seconds; None sets no limit."""
        return None if self.timeout_ns is None else self.timeout_ns / _NS_PER_S

    def start(self) -> None:
        """Starts watching for hanging predictions; does nothing without a timeout."""
        if self.timeout_ns is not None:
            self._thread.start()

    def close(self) -> None:
        """Stops watching; calling it again does nothing."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()

    def predict(self, predictor: Predictor, inputs: Tensors) -> Tensors:
        """Predicts a batch like ``Predictor.predict``, and tracks the prediction.

        Raises:
            PredictionError: The framework failed, or the predictor did not return tensors.
            OutOfMemoryError: There is not enough memory for the batch.
        """
        model = predictor.manifest.name
        number, began_ns = self.begin(model, predictor)
        try:
            outputs = predictor.predict(inputs)
            _check_tensors(predictor, outputs)
        except MemoryError as error:
            failure = OutOfMemoryError(f"{predictor}: there is not enough memory for the batch")
            self.fail(number, model, str(predictor.options.device), failure)
            raise failure from error
        except BaseException as error:
            self.fail(number, model, str(predictor.options.device), error)
            raise
        self.end(number, model, began_ns, len(next(iter(inputs.values()))))
        return outputs

    @property
    def trouble(self) -> Trouble:
        """The reasons why the agent is not fit to serve; false if it is fit."""
        now_ns = self._clock()
        with self._lock:
            hanging = [
                (model, now_ns - self._under_way.get(number, ("", now_ns, None))[1], self._alive_of(model))
                for number, model in self._hanging.items()
            ]
        return Trouble(tuple(self._lost.items()), tuple(hanging))

    def begin(self, model: str, predictor: Predictor | None = None) -> tuple[int, int]:
        """Registers the start of a prediction; returns its number and the time."""
        number, began_ns = next(self._numbers), self._clock()
        self._under_way[number] = (model, began_ns, predictor)
        return number, began_ns

    def end(self, number: int, model: str, began_ns: int, inputs: int) -> None:
        """Registers that a prediction has succeeded."""
        duration_ns = self._clock() - began_ns
        self._forget(number, model)
        for observer in self._observers:
            observer.predicted(model, inputs, duration_ns)

    def fail(self, number: int, model: str, device: str, error: BaseException) -> None:
        """Registers that a prediction has failed."""
        self._forget(number, model)
        for observer in self._observers:
            observer.prediction_failed(model, error)
        if isinstance(error, DeviceLostError):
            with self._lock:
                is_new = device not in self._lost
                self._lost.setdefault(device, str(error))
            if is_new:
                _log.error("device %s is lost: %s", device, error)
                self._report_fitness()

    def check(self) -> None:
        """Checks once for hanging predictions."""
        limit_ns = self.timeout_ns
        if limit_ns is None:
            return
        now_ns = self._clock()
        found = []
        with self._lock:
            for number, (model, began_ns, predictor) in list(self._under_way.items()):
                if number not in self._hanging and now_ns - began_ns > limit_ns:
                    self._hanging[number] = model
                    if number not in self._under_way:  # it has ended just now, and found nothing to take out
                        del self._hanging[number]
                        continue
                    if predictor is not None:
                        predictor.hangs = True
                    found.append((model, now_ns - began_ns))
        for model, busy_ns in found:
            _log.error(
                "model %s: a prediction has run for %.1f s, and may take %.1f s (--predict_timeout_s); until "
                "it ends, requests that wait for it are refused",
                model,
                busy_ns / _NS_PER_S,
                limit_ns / _NS_PER_S,
            )
            for observer in self._observers:
                observer.prediction_hangs(model)
        if self._hanging or not self._fit:  # of other instances, one may have ended or started meanwhile
            self._report_fitness()

    def _report_fitness(self) -> None:
        with self._reporting:  # so that the last call has the current value
            if (fit := not self.trouble) != self._fit:
                self._fit = fit
                self._on_fitness(fit)

    def _forget(self, number: int, model: str) -> None:
        _, _, predictor = self._under_way.pop(number)
        if not self._hanging:  # as it nearly always is
            return
        with self._lock:
            hung = self._hanging.pop(number, None) is not None
            if hung and predictor is not None:
                predictor.hangs = False
        if hung:
            _log.warning("model %s: its prediction, which had hung, has ended", model)
            self._report_fitness()

    def _look(self) -> None:
        pause_s = min(_LONGEST_PAUSE_S, (self.timeout_ns or 0) / _NS_PER_S / _CHECKS)
        while not self._stopping.wait(pause_s):
            self.check()


def _check_tensors(predictor: Predictor, outputs: object) -> None:
    """Raises PredictionError if a predictor, which may be a plug-in, did not return tensors."""
    if not isinstance(outputs, Mapping):
        raise PredictionError(f"{predictor}: its predictor returned {type(outputs).__name__}, not tensors")
    for name, output in outputs.items():
        if not isinstance(output, np.ndarray):
            raise PredictionError(
                f'{predictor}: output "{name}" is {type(output).__name__}, which is not a tensor'
            )


@dataclass(frozen=True, slots=True)
class AgentLoad:
    """The load of an agent; a model that is loaded twice is listed twice.

    ``sessions`` is how many sessions clients hold open; ``trouble`` is why the agent is not fit to serve.
    """

    stopping: bool = False
    sessions: int = 0
    trouble: Trouble = field(default_factory=Trouble)
    models: tuple[LoadedModel, ...] = ()

    @property
    def serving(self) -> bool:
        """Whether the agent is fit to serve."""
        return not (self.stopping or self.trouble)
