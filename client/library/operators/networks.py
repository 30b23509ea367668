"""Recurrent layers, losses and a custom operator as classes."""

from __future__ import annotations

from inferometer.client.library.operators.benchmark import MXNetBenchmark
from inferometer.client.library.operators.definition import Definition

_DATA = ("data_initializer",)
_FIXED = ("num_layers", "layout", "dropout", "bidirectional")


class RNN(MXNetBenchmark):
    """A recurrent layer with rectifiers."""

    definition = Definition(
        operator="rnn_relu",
        result="Gluon_Imperative_RNN",
        tensors={"data": (25, 32, 256)},
        parameters={
            "hidden_size": 100,
            "num_layers": 1,
            "activation": "relu",
            "layout": "TNC",
            "dropout": 0,
            "bidirectional": False,
        },
        names={"hidden_size": "hidden"},
        fixed=("activation", *_FIXED),
        form="gluon",
        initializers=_DATA,
    )


class LSTM(MXNetBenchmark):
    """A long short-term memory."""

    definition = Definition(
        operator="lstm",
        result="Gluon_Imperative_LSTM",
        tensors={"data": (25, 32, 256)},
        parameters={
            "hidden_size": 100,
            "num_layers": 1,
            "layout": "TNC",
            "dropout": 0,
            "bidirectional": False,
        },
        names={"hidden_size": "hidden"},
        fixed=_FIXED,
        form="gluon",
        initializers=_DATA,
    )


class GRU(MXNetBenchmark):
    """A gated recurrent unit."""

    definition = Definition(
        operator="gru",
        result="Gluon_Imperative_GRU",
        tensors={"data": (25, 32, 256)},
        parameters={
            "hidden_size": 100,
            "num_layers": 1,
            "layout": "TNC",
            "dropout": 0,
            "bidirectional": False,
        },
        names={"hidden_size": "hidden"},
        fixed=_FIXED,
        form="gluon",
        initializers=_DATA,
    )


class L1Loss(MXNetBenchmark):
    """The mean of absolute differences, for each sample."""

    definition = Definition(
        operator="l1_loss",
        result="Gluon_Imperative_L1Loss",
        tensors={"pred": (32, 1000, 1), "label": (32, 1000, 1)},
        parameters={"weight": 1.0},
        fixed=("weight",),
        initializers=("pred_initializer", "label_initializer"),
        backward=False,
        form="gluon",
    )


class L2Loss(MXNetBenchmark):
    """Half of the mean of squared differences, for each sample."""

    definition = Definition(
        operator="l2_loss",
        result="Gluon_Imperative_L2Loss",
        tensors={"pred": (32, 1000, 1), "label": (32, 1000, 1)},
        parameters={"weight": 1.0},
        fixed=("weight",),
        initializers=("pred_initializer", "label_initializer"),
        backward=False,
        form="gluon",
    )


class SigmoidBinaryCrossEntropyLoss(MXNetBenchmark):
    """The binary cross-entropy of logits, for each sample."""

    definition = Definition(
        operator="sigmoid_bce",
        result="Gluon_Imperative_SigmoidBinaryCrossEntropyLoss",
        tensors={"pred": (32, 1000, 1), "label": (32, 1000, 1)},
        parameters={"weight": 1.0},
        fixed=("weight",),
        initializers=("pred_initializer", "label_initializer"),
        backward=False,
        form="gluon",
    )


class SoftmaxCrossEntropyLoss(MXNetBenchmark):
    """The cross-entropy of logits and probabilities, for each sample."""

    definition = Definition(
        operator="softmax_ce",
        result="Gluon_Imperative_SoftmaxCrossEntropyLoss",
        tensors={"pred": (32, 1000, 1), "label": (32, 1000, 1)},
        parameters={"weight": 1.0, "axis": -1, "sparse_label": False},
        fixed=("weight", "axis", "sparse_label"),
        initializers=("pred_initializer", "label_initializer"),
        backward=False,
        form="gluon",
    )


class CustomOpElementwiseAdd(MXNetBenchmark):
    """data + 1 by a custom operator, which mostly shows what calling one costs."""

    definition = Definition(
        operator="custom_add_one",
        result="CustomOp_Elementwise_Add",
        tensors={"data": (1000, 1)},
        initializers=_DATA,
    )


RECURRENT = (
    RNN,
    LSTM,
    GRU,
)
LOSS = (
    L1Loss,
    L2Loss,
    SigmoidBinaryCrossEntropyLoss,
    SoftmaxCrossEntropyLoss,
)
CUSTOM = (CustomOpElementwiseAdd,)
