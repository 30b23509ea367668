"""Generator of StatementsCNN and statements_validation: texts, vocabulary, weights, checksums.

    python tools/train_statements_cnn.py               write into manifests/builtin
    python tools/train_statements_cnn.py --output DIR  write the same tree below DIR
    python tools/train_statements_cnn.py --check       make it all again, and compare with the committed files
    python tools/train_statements_cnn.py --check DIR   or with the tree below DIR

The texts are statements about digits in words, each true or false, by this grammar:

    text       := [frame] digit "is" ["not"] (relation digit | parity)
    frame      := "it is true that" | "surely" | "it is false that" | "it is not true that"
                | "nobody believes that"
    relation   := "less than" | "greater than" | "equal to" | "at most" | "at least"
    parity     := "even" | "odd"
    digit      := "zero" | … | "nine"

The last three frames and "not" each turn a statement into its opposite. There are 6,240 texts, half of them
true, so that neither a word nor the words without their order reveal which. A seeded sample of them becomes
statements_validation; the network is trained on the others, in float64 on one thread, as DigitsCNN is. Each
framework loads its file and must classify every text of the dataset alike.
"""

from __future__ import annotations

import os

# Before numpy and the frameworks, which read it when they are imported.
os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import argparse
import csv
import hashlib
import io
import itertools
import operator
import re
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from digits_cnn_formats import Array, Weights
from statements_cnn_formats import FORMATS
from train_digits_cnn import weight_differences

from inferometer.agent.architectures.pytorch.text_convolution import StatementsCNN
from inferometer.agent.preprocessing.inputs import Text
from inferometer.agent.preprocessing.text_preprocessor import TextTokenizer
from inferometer.manifests.inputs import TextParameters

BUILTIN = Path(__file__).resolve().parent.parent / "manifests" / "builtin"
MODEL = Path("models/StatementsCNN")
VOCABULARY = MODEL / "vocab.txt"
DATASET = Path("datasets/statements_validation/statements_validation.csv")
FILES = (DATASET, VOCABULARY, *(MODEL / name for form in FORMATS for name in form.files.values()))

SEED = 20180501
HELD_OUT = 400
EPOCHS = 30
BATCH_SIZE = 64
LEARNING_RATE = 0.003
MIN_ACCURACY = 0.95
MAX_BYTES = 200_000
LABELS = ("false", "true")

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
FRAMES = {
    "": False,
    "it is true that": False,
    "surely": False,
    "it is false that": True,
    "it is not true that": True,
    "nobody believes that": True,
}
RELATIONS: Mapping[str, Callable[[int, int], bool]] = {
    "less than": operator.lt,
    "greater than": operator.gt,
    "equal to": operator.eq,
    "at most": operator.le,
    "at least": operator.ge,
}
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")

Labelled = list[tuple[str, int]]
"""Texts, each with its class."""


def main() -> int:
    """Generates or checks the files; returns the exit status."""
    parser = argparse.ArgumentParser(description="Make the dataset of statements and StatementsCNN.")
    target = parser.add_mutually_exclusive_group()
    target.add_argument("--output", type=Path, default=BUILTIN, help="folder to write below")
    target.add_argument(
        "--check", type=Path, nargs="?", const=BUILTIN, metavar="DIR", help="compare; write nothing"
    )
    arguments = parser.parse_args()
    start = time.monotonic()
    differences: list[str] = []
    if arguments.check:
        with tempfile.TemporaryDirectory() as directory:
            make(Path(directory))
            differences = compare(Path(directory), arguments.check)
        print("\n".join(differences) or f"{arguments.check} matches what the script generates")
    else:
        make(arguments.output)
    print(f"took {time.monotonic() - start:.1f} s")
    return 1 if differences else 0


def make(output: Path) -> None:
    """Writes the dataset, the vocabulary, the weights and the manifests with their checksums.

    Raises:
        SystemExit: The model is not accurate enough, the frameworks disagree, or the files are too large.
    """
    training, held_out = split(statements())
    for folder in (DATASET.parent, MODEL):
        (output / folder).mkdir(parents=True, exist_ok=True)
    (output / DATASET).write_text(as_csv(held_out), encoding="utf-8")
    words = sorted({word for text, _ in training for word in text.split()})
    (output / VOCABULARY).write_text("\n".join((*SPECIAL, *words)) + "\n", encoding="utf-8")
    weights = train(*tensors(training, output / VOCABULARY))
    for form in FORMATS:
        form.write(weights, output / MODEL)
    accuracy = verify(output / MODEL, *tensors(held_out, output / VOCABULARY))
    sizes_bytes = {path: (output / path).stat().st_size for path in FILES}
    for path, size_bytes in sizes_bytes.items():
        print(f"{path}: {size_bytes:,} bytes")
    if (total := sum(sizes_bytes.values())) > MAX_BYTES:
        raise SystemExit(f"the files have {total:,} bytes; at most {MAX_BYTES:,} may ship")
    write_manifests(output, accuracy)


def statements() -> Labelled:
    """Returns all texts of the grammar, in its order."""
    texts = []
    for (frame, turned), first, negated in itertools.product(FRAMES.items(), range(10), (False, True)):
        claims = [
            (f"{relation} {DIGITS[second]}", holds(first, second))
            for (relation, holds), second in itertools.product(RELATIONS.items(), range(10))
        ]
        claims += [("even", first % 2 == 0), ("odd", first % 2 == 1)]
        begin = f"{frame} {DIGITS[first]} is{' not' if negated else ''}".strip()
        texts += [(f"{begin} {claim}", int(truth ^ negated ^ turned)) for claim, truth in claims]
    return texts


def split(texts: Labelled) -> tuple[Labelled, Labelled]:
    """Returns the texts to train with, and those that are held out, in shuffled order."""
    order = np.random.default_rng(SEED).permutation(len(texts))
    return [texts[place] for place in order[HELD_OUT:]], [texts[place] for place in order[:HELD_OUT]]


def as_csv(texts: Labelled) -> str:
    """Returns a CSV with the columns text and label."""
    content = io.StringIO()
    rows = csv.writer(content, lineterminator="\n")
    rows.writerow(("text", "label"))
    rows.writerows((text, LABELS[label]) for text, label in texts)
    return content.getvalue()


def tensors(texts: Labelled, vocabulary: Path) -> tuple[Array, Array]:
    """Returns token ids and mask, int64 (2, samples, tokens), and the classes, int64."""
    parameters = TextParameters(tokenizer=vocabulary.name, layers={"ids": "input_ids"})  # type: ignore[arg-type]
    tokenize = TextTokenizer(parameters, vocabulary)
    rows = [tokenize(Text(text)).ids for text, _ in texts]
    inputs = np.zeros((2, len(rows), max(map(len, rows))), np.int64)
    inputs[0] = tokenize.padding_id
    for place, row in enumerate(rows):
        inputs[0, place, : len(row)] = row
        inputs[1, place, : len(row)] = 1
    return inputs, np.array([label for _, label in texts])


def train(inputs: Array, labels: Array) -> Weights:
    """Returns the weights, float32, by their names in PyTorch."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(SEED)
    random = np.random.default_rng(SEED)
    model = StatementsCNN(tokens=int(inputs[0].max()) + 1).to(torch.float64)
    for layer in model.children():
        layer.reset_parameters()  # type: ignore[operator]  # again in float64: all layers here have it
    ids, mask, targets = (torch.from_numpy(array) for array in (*inputs, labels))
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(EPOCHS):
        optimizer.param_groups[0]["lr"] = LEARNING_RATE * (1 - epoch / EPOCHS)
        order = torch.from_numpy(random.permutation(len(targets)))
        for chosen in order.split(BATCH_SIZE):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(ids[chosen], mask[chosen]), targets[chosen])
            loss.backward()  # type: ignore[no-untyped-call]  # PyTorch gives it no types
            optimizer.step()
    return {name: value.to(torch.float32).numpy() for name, value in model.state_dict().items()}


def verify(folder: Path, inputs: Array, labels: Array) -> float:
    """Returns the accuracy of the model in ``folder``, which is the same in every framework.

    Raises:
        SystemExit: The accuracy is below ``MIN_ACCURACY``, or two frameworks classify a text differently.
    """
    logits = {form.framework: form.predict(folder, inputs) for form in FORMATS}
    first, *others = logits
    accuracy = float((logits[first].argmax(axis=1) == labels).mean())
    print(f"accuracy {accuracy:.4f} over {len(labels)} texts that are held out")
    if accuracy < MIN_ACCURACY:
        raise SystemExit(f"accuracy {accuracy:.4f} is below {MIN_ACCURACY}")
    for framework in others:
        print(
            f"{framework}: logits within {np.abs(logits[framework] - logits[first]).max():.1e} of {first}'s"
        )
        differing = np.flatnonzero(logits[framework].argmax(axis=1) != logits[first].argmax(axis=1))
        if len(differing):
            raise SystemExit(f"{framework} and {first} classify texts differently: {differing.tolist()}")
    return accuracy


def write_manifests(output: Path, accuracy: float) -> None:
    """Writes the manifests of the dataset and the models, with the current checksums and accuracy."""
    for path, fields in checksums(output).items():
        if path.parent == MODEL:
            fields["accuracy"] = f"{accuracy:.4f}"
        text = (BUILTIN / path).read_text(encoding="utf-8")
        for field, value in fields.items():
            text, count = re.subn(rf"^( *{field}:) .*$", rf"\1 {value}", text, flags=re.MULTILINE)
            if count != 1:
                raise SystemExit(f"{path}: field {field} occurs {count} times instead of once")
        (output / path).write_text(text, encoding="utf-8")


def checksums(output: Path) -> dict[Path, dict[str, str]]:
    """Returns the checksum fields that each manifest must have for the files in ``output``."""

    def of(path: Path) -> str:
        return "sha256:" + hashlib.sha256((output / path).read_bytes()).hexdigest()

    models = {
        MODEL / form.manifest: {
            "tokenizer_checksum": of(VOCABULARY),
            **{f"{kind}_checksum": of(MODEL / name) for kind, name in form.files.items()},
        }
        for form in FORMATS
    }
    return {DATASET.with_suffix(".yml"): {"checksum": of(DATASET)}, **models}


def compare(made: Path, committed: Path) -> list[str]:
    """Returns what differs, one line each: texts, vocabulary, graphs, weights, checksums."""
    damaged = [f"{path}: is missing" for path in FILES if not (committed / path).is_file()]
    if not damaged:
        for path, fields in checksums(committed).items():
            lines = [line.strip() for line in (committed / path).read_text(encoding="utf-8").splitlines()]
            wanted = (f"{field}: {value}" for field, value in fields.items())
            damaged += [f"{path}: lacks {line}, which its file has" for line in wanted if line not in lines]
    if damaged:
        return damaged
    differences = [
        f"{path}: is not the one that the script makes"
        for path in (DATASET, VOCABULARY)
        if (made / path).read_bytes() != (committed / path).read_bytes()
    ]
    for form in FORMATS:
        if form.read_graph(made / MODEL) != form.read_graph(committed / MODEL):
            differences.append(f"{form.framework}: the graph is not the one that the script makes")
        weights = form.read_weights(made / MODEL), form.read_weights(committed / MODEL)
        differences += [f"{form.framework}: {text}" for text in weight_differences(*weights)]
    return differences


if __name__ == "__main__":
    sys.exit(main())
