"""A process that replaces the texts of a good file, one after the other, by code, and reads what it gives.

python hostile_files.py EXAMPLES SECONDS FOLDER FORMAT...

It prints a line of JSON when it begins a format, and one with what it found.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import resource
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import psutil
import yaml

from inferometer.agent.artifacts.files import Artifacts
from inferometer.agent.hardware.environment import PredictorOptions
from inferometer.agent.inference.given_models import Wanted, model_of_file
from inferometer.agent.inference.registry import Registry
from inferometer.agent.inference.requirements import unsupported
from inferometer.agent.preprocessing.inputs import Text, blank_batch
from inferometer.agent.preprocessing.text_preprocessor import TextTokenizer
from inferometer.evaluators.datasets.opening import open_path
from inferometer.evaluators.plans.cells import cells_of
from inferometer.evaluators.plans.dlbs import import_dlbs
from inferometer.evaluators.plans.plan import read_plan
from inferometer.evaluators.plans.running.folder import Ended, Journal, Result, journal_file, read_history
from inferometer.evaluators.store.evaluation_store import EvaluationFilter
from inferometer.evaluators.store.opening import open_store
from inferometer.manifests.errors import InferometerError, InputError
from inferometer.manifests.inputs import TextParameters
from inferometer.manifests.loader import load_manifest
from inferometer.manifests.schema import ModelManifest
from tests import task_dataset_files
from tests.fuzz.audit_watch import Watch
from tests.fuzz.damaged_datasets import made
from tests.fuzz.hostile_texts import MARK, Replacer, payloads, replacers

BUILTIN = Path(__file__).parents[2] / "manifests" / "builtin"
DOCUMENTS = Path(__file__).parents[1] / "data" / "documents_v1"
_MOST_BYTES = 2 << 30
SHAPE = (3, 8, 8)
Read: TypeAlias = Callable[[], object]
Format: TypeAlias = Callable[[Path], tuple[Path, Read]]
"""Writes a good file into a folder; returns that of its files which changes, and how it is opened and run."""


def model(path: Path) -> object:
    """Opens a model's file without a manifest, and runs it."""
    wanted = Wanted(shape=SHAPE, element_type="float32")
    manifest = model_of_file(path, Registry(), wanted).manifest
    files = manifest.model
    weights = path.parent / files.weights_path if files.weights_path else None
    artifacts = Artifacts(graph=path.parent / files.graph_path, weights=weights)
    predictor = Registry().find(manifest.framework.name).load()(manifest, artifacts, PredictorOptions())
    with closing(predictor):
        predictor.load()
        return predictor.predict(blank_batch(predictor.tensors))


def program(folder: Path) -> tuple[Path, Read]:
    import torch

    from tests.model_files import TinyNet, save_program

    torch.manual_seed(0)
    path = save_program(TinyNet(), folder / "net.pt2", torch.zeros(2, *SHAPE))
    return path, lambda: model(path)


def state_dict(folder: Path) -> tuple[Path, Read]:
    import torch

    from inferometer.agent.frameworks.pytorch.modules import read_weights
    from tests.model_files import TinyNet

    torch.manual_seed(0)
    path, net = folder / "net.pt", TinyNet()
    torch.save(net.state_dict(), path)
    return path, lambda: read_weights("net", net, path)


def traced_inputs(folder: Path) -> tuple[Path, Read]:
    import torch

    from inferometer.agent.artifacts import torch_archives
    from tests.model_files import TinyNet, save_script

    torch.manual_seed(0)
    path = save_script(TinyNet(), folder / "net.pt", torch.zeros(2, *SHAPE))
    return path, lambda: (torch_archives.torch_file(path), torch_archives.traced_inputs(path))


def onnx_graph(folder: Path) -> tuple[Path, Read]:
    from tests.model_files import save_onnx

    path = save_onnx(folder / "net.onnx", ("batch", *SHAPE))
    return path, lambda: model(path)


def symbol(folder: Path) -> tuple[Path, Read]:
    from tests.model_files import save_symbol

    path = save_symbol(folder)
    return path, lambda: model(path)


def symbol_parameters(folder: Path) -> tuple[Path, Read]:
    path, read = symbol(folder)
    return path.with_name("net-0000.params"), read


def tokenizer(name: str) -> Format:
    def written(folder: Path) -> tuple[Path, Read]:
        words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "seven", "is", "##s"]
        vocabulary, path = folder / "vocab.txt", folder / name
        vocabulary.write_text("\n".join(words) + "\n")
        parameters = TextParameters(tokenizer=name, layers={"ids": "input_ids"})
        plain = TextParameters(tokenizer="vocab.txt", layers={"ids": "input_ids"})
        if path != vocabulary:
            path.write_text(TextTokenizer(plain, vocabulary)._pairs.to_str())
        return path, lambda: TextTokenizer(parameters, path)(Text("Seven is sevens"))

    return written


def manifest(pattern: str) -> Format:
    def written(folder: Path) -> tuple[Path, Read]:
        path = folder / "net.yml"
        path.write_text(min(BUILTIN.glob(pattern), key=str).read_text("utf-8"), "utf-8")

        def read() -> None:
            loaded = load_manifest(path)
            if isinstance(loaded, ModelManifest):
                unsupported(loaded)

        return path, read

    return written


PLAN = {
    "name": "batches",
    "command": "predict dataset",
    "parameters": {"model_name": "DigitsCNN", "exp.most": {"val": 16, "type": "int", "desc": "the largest"}},
    "variables": {
        "framework_name": ["PyTorch", "${exp.name}"],
        "batch_size": [1, "${exp.most}"],
        "exp.name": ["MXNet"],
    },
    "exclude": [{"model_name": "ResNet.*"}],
    "constraints": ["${batch_size} * 2 <= 256"],
    "extensions": [
        {"condition": {"model_name": "(.*)CNN"}, "parameters": {"exp.a": "${__condition.model_name_1}"}}
    ],
    "software": {
        "mine": {"python": "python3", "environment": {"A": "b"}},
        "pinned": {"launcher": "nice -n 5"},
    },
}
DLBS = {
    "parameters": {
        "exp.framework": "pytorch",
        "exp.model": "resnet50",
        "exp.phase": "inference",
        "exp.id": "$uuid()$",
    },
    "variables": {"exp.replica_batch": [1, 2], "exp.device_type": ["cpu"]},
    "extensions": [
        {"condition": {"exp.framework": "py(.*)"}, "parameters": {"exp.env": "$('${exp.framework}')$"}}
    ],
}


def plan(folder: Path) -> tuple[Path, Read]:
    path = folder / "plan.yaml"
    path.write_text(yaml.safe_dump(PLAN))
    return path, lambda: cells_of(read_plan(path))


def dlbs(folder: Path) -> tuple[Path, Read]:
    path = folder / "dlbs.json"
    path.write_text(json.dumps(DLBS))
    return path, lambda: import_dlbs(path.read_text("utf-8"), "dlbs")


def journal(folder: Path) -> tuple[Path, Read]:
    written = Journal(folder)
    written.submitted("a-1", "local/1")
    written.lost("a-1", "killed", counts=True)
    written.ended(Result("a-1", Ended.COMPLETE))
    return journal_file(folder), lambda: read_history(folder)


def documents(folder: Path) -> tuple[Path, Read]:
    from tests.fuzz.test_fuzz_documents import EARLIER, read_and_report

    path = folder / "evaluation.json"
    path.write_text(EARLIER[0], "utf-8")
    return path, lambda: read_and_report(path.read_text("utf-8", "replace"))


def database(folder: Path) -> tuple[Path, Read]:
    """Its changing file is the head of an evaluation, which is put into the database before it is read."""
    import neosqlite

    from inferometer.client.commands.show import lines_of
    from inferometer.evaluators.store.evaluation_store import evaluation_from_json

    evaluation = evaluation_from_json(sorted(DOCUMENTS.glob("*.json"))[0].read_text("utf-8"))
    with closing(open_store(None, "store", folder)) as store:
        store.save(evaluation)
    connection = neosqlite.Connection(str(folder / "store.db"))
    heads = connection["evaluation"]
    path = folder / "head.json"
    path.write_text(json.dumps(heads.find_one({}), default=str))

    def read() -> None:
        heads.delete_many({})
        heads.insert_one(json.loads(path.read_text("utf-8")))
        with closing(open_store(None, "store", folder)) as store:
            errors: list[Exception] = []
            for found in store.find(EvaluationFilter(), errors.append):
                lines_of(found, [], lambda _: iter(()))
            store.ids("")

    return path, read


def dataset(name: str) -> Format:
    def written(folder: Path) -> tuple[Path, Read]:
        path, target = made(name, folder, random.Random(name))
        return target, lambda: read_dataset(path)

    return written


def arrays(folder: Path) -> tuple[Path, Read]:
    path = folder / "arrays.npz"
    np.savez(path, inputs=np.ones((2, 3), np.float32), y=np.array(["a", "b"]))
    return path, lambda: read_dataset(path)


def lines(name: str, text: str) -> Format:
    def written(folder: Path) -> tuple[Path, Read]:
        path = folder / name
        path.write_text(text)
        return path, lambda: read_dataset(path)

    return written


def values(folder: Path) -> tuple[Path, Read]:
    path = task_dataset_files.table(folder)
    return path, lambda: read_dataset(path)


def read_dataset(path: Path) -> None:
    with closing(open_path(path, "vision")) as opened:
        for sample in opened:
            for read in (sample.read, sample.read_truth):
                with suppress(InputError):
                    read()


def evaluated(folder: Path) -> tuple[Path, Read]:
    """A reader that runs what it reads, which the watch must find."""
    path = folder / "code.json"
    path.write_text('{"code": "1"}')
    return path, lambda: eval(json.loads(path.read_text())["code"])


MODELS: Mapping[str, Format] = {
    "program": program,
    "state_dict": state_dict,
    "traced_inputs": traced_inputs,
    "onnx": onnx_graph,
    # those of MXNet, which Python 3.13 does not have
    **({"symbol": symbol, "symbol_parameters": symbol_parameters} if find_spec("mxnet") else {}),
}
DATA: Mapping[str, Format] = {
    "tokenizer": tokenizer("tokenizer.json"),
    "vocabulary": tokenizer("vocab.txt"),
    "model_manifest": manifest("models/*/*.yml"),
    "dataset_manifest": manifest("datasets/*/*.yml"),
    "framework_manifest": manifest("frameworks/**/*.yml"),
    "plan": plan,
    "dlbs": dlbs,
    "journal": journal,
    "documents": documents,
    "database": database,
    **{
        name: dataset(name)
        for name in (
            "recordio",
            "recordio_index",
            "lmdb_small",
            "cifar_binary",
            "cifar_python",
            "cifar_archive",
        )
    },
    **{name: dataset(name) for name in ("mnist", "ilsvrc_meta", "coco", "voc")},
    "npz": arrays,
    "jsonl": lines("texts.jsonl", '{"text": "a b", "label": "x", "id": "1"}\n{"text": "c", "label": "y"}\n'),
    "csv": lines("texts.csv", 'text,label,answers\n"a b",x,"[""a""]"\nc,y,"[""c""]"\n'),
    "values": values,
}
SELF_TEST = {"evaluated": evaluated}


def changes(found: list[Replacer], texts: list[str], number: random.Random) -> Iterator[bytes]:
    """Each text with each payload: every text once before any is replaced again, and then at random."""
    for turn in range(len(texts)):
        order = number.sample(range(len(found)), len(found))
        for place in order:
            yield found[place](texts[(place + turn) % len(texts)])
    while True:
        yield number.choice(found)(number.choice(texts) + number.choice(texts))


def fuzz(
    name: str, written: Format, folder: Path, watch: Watch, examples: int, seconds: float
) -> dict[str, Any]:
    """Reads the good file, then changed ones; returns the counts, and what was found with its change."""
    secret = folder.parent / "secret.txt"
    path, read = written(folder)
    _limit_memory()
    good = path.read_bytes()
    with watch.learning():
        for content in (good, b"{}", good[: len(good) // 2]):  # and what a refusal imports
            path.write_bytes(content)
            with suppress(Exception):
                read()
    path.write_bytes(good)
    read()
    found = list(replacers(path.name, good))
    counts = {"texts": len(found), "examples": 0, "refused": 0}
    problems: list[str] = []
    began = time.monotonic()
    for content in itertools.islice(
        changes(found, payloads(secret), random.Random(name)), examples or len(found)
    ):
        path.write_bytes(content)
        watch.found.clear()
        with watch.watching():
            try:
                read()
            except InferometerError:
                counts["refused"] += 1
            except BaseException as error:  # noqa: BLE001 - also what Rust raises where it panics
                problems.append(f"{type(error).__module__}.{type(error).__name__}: {str(error)[:200]}")
        problems += watch.found
        for each in (Path.cwd() / MARK, folder / MARK):
            each.unlink(missing_ok=True)
        counts["examples"] += 1
        if len(problems) > 5 or time.monotonic() - began > seconds:
            break
    path.write_bytes(good)
    return {"format": name, **counts, "problems": [ascii(each) for each in problems[:5]]}


def _limit_memory() -> None:
    """Bounds what damaged numbers make a framework allocate."""
    most = psutil.Process().memory_info().vms + _MOST_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))


def main(examples: int, seconds: float, folder: Path, names: list[str]) -> None:
    warnings.simplefilter("ignore")  # of damaged files, which the command line prints
    (folder / "secret.txt").write_text("text,label\na,b\n")
    os.chdir(folder)
    watch = Watch(folder, folder / "secret.txt")
    for name in names:
        sys.stdout.write(json.dumps({"begins": name}) + "\n")
        sys.stdout.flush()
        (folder / name).mkdir()
        result = fuzz(name, {**MODELS, **DATA, **SELF_TEST}[name], folder / name, watch, examples, seconds)
        sys.stdout.write(json.dumps(result) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3]).resolve(), sys.argv[4:])
