"""Benchmarks of single operators as classes, with the names and inputs of dl-operator-benchmark.

``inferometer.operators.mxnet.nd``, ``.gluon.nn``, ``.gluon.rnn``, ``.gluon.loss`` and ``.custom`` contain the
classes for MXNet, ``inferometer.operators.pytorch`` those for PyTorch. An import loads no framework; the
first ``run_benchmark`` does. docs/operators-classes.md describes the classes.
"""
