"""The predictor whose model runs on a server of the Open Inference Protocol."""

from __future__ import annotations

from dataclasses import replace

from agent.artifacts import Artifacts
from agent.predictor import Predictor, PredictorOptions, Tensors
from client.remote.kserve.connection import KServeConnection, Metadata
from client.remote.kserve.fitting import Fit
from client.remote.kserve.messages import InferReply, RequestForm, decode_reply, outputs_in_order
from manifests.errors import PredictionError
from manifests.schema import ModelManifest


class KServePredictor(Predictor):
    """Sends each batch to a server: ``predict`` is one ``ModelInfer``, and holds the way there and back.

    Args:
        connection: To the server; it is not closed here.
        manifest: The model; its ``probabilities_layer`` is as the server calls the output.
        form: What is the same in all requests.
        fit: What the server calls things, and how many inputs it takes at a time.
        options: The device, which is remote.
        timeout_s: How long one answer may take, in seconds; None waits.
    """

    def __init__(
        self,
        connection: KServeConnection,
        manifest: ModelManifest,
        form: RequestForm,
        fit: Fit,
        options: PredictorOptions,
        timeout_s: float | None,
    ) -> None:
        super().__init__(manifest, Artifacts(), options)
        self.connection = connection
        self.form = form
        self.timeout_s = timeout_s
        self.metadata: Metadata = ()
        """What goes with every request beside the secret: the trace that it belongs to."""
        self._fit = fit

    def load(self) -> None:
        """Does nothing: the model is loaded at the server."""

    def predict(self, inputs: Tensors) -> Tensors:
        """Sends a batch and waits for the outputs, which bear the server's names.

        Raises:
            ConfigurationError: The server takes no batch of this size.
            PredictionError: The server refused the request, failed, or answered something else.
            AgentError: The server was lost, or did not answer in time.
        """
        batch = self.checked_input(inputs)
        self.check_batch(len(batch))
        request = self.form.encode(batch)
        return self.read(self.connection.infer(request, self.timeout_s, self.metadata)).outputs

    def check_batch(self, size: int) -> None:
        """Refuses a batch of a size that the server does not take.

        Raises:
            ConfigurationError: It has too many inputs, or too few.
        """
        self._fit.batch.check(size, str(self))

    def read(self, answer: bytes) -> InferReply:
        """Reads an encoded answer.

        Raises:
            PredictionError: It is none, or lacks an output.
        """
        try:
            reply = decode_reply(answer)
            outputs = outputs_in_order(reply.outputs, self.form.outputs)
        except PredictionError as error:
            raise PredictionError(f"{self}: {error}") from error
        return replace(reply, outputs=self._named(outputs))

    def _named(self, outputs: Tensors) -> Tensors:
        """The outputs; the only one by the name that the manifest has for it, if it has one."""
        wanted = self.manifest.output.parameters.probabilities_layer
        if self.manifest.output.type != "raw" and isinstance(wanted, str) and len(outputs) == 1:
            [array] = outputs.values()
            return {wanted: array}
        return outputs

    def __str__(self) -> str:
        return f"server {self.connection.address.server}, model {self.form.model_name}"

    @property
    def threads(self) -> int | None:
        """Not known: the server does not tell."""
        return None

    def close(self) -> None:
        """Does nothing: the model stays at the server."""
