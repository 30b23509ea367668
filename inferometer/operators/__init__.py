"""Benchmarks of single operators as classes, with the names and inputs of dl-operator-benchmark.

``inferometer.operators.mxnet.nd``, ``.gluon.nn``, ``.gluon.rnn``, ``.gluon.loss`` and ``.custom`` have those
of MXNet, ``inferometer.operators.pytorch`` those of PyTorch. An import loads no framework; the first
``run_benchmark`` does. docs/operators-classes.md describes them.
"""
