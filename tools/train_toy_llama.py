"""Trains the weights of ToyLlama, a tiny Llama over bytes, as its config.json describes it.

    python tools/train_toy_llama.py               write into manifests/builtin
    python tools/train_toy_llama.py --output DIR  write the same tree below DIR
    python tools/train_toy_llama.py --check       make it all again, and compare with the committed files

The text is the licence of this repository, which does not change: the network learns it nearly by heart, so
what it generates is legible. Each paragraph is followed by the end token. It is trained in float64 on one
thread, and its tokens are ByT5's: 0 is padding, 1 the end, 2 unknown, and byte b is b + 3.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import torch
from torch.nn import functional

from inferometer.agent.architectures.pytorch.llama import Llama
from inferometer.agent.frameworks.pytorch.language_model import read_config, read_tensors
from inferometer.agent.generation.tokenizers import ByteTokenizer

ROOT = Path(__file__).resolve().parent.parent
BUILTIN = ROOT / "manifests" / "builtin"
MODEL = Path("models/ToyLlama")
WEIGHTS = "model.safetensors"

SEED = 20261127
STEPS = 1200
BATCH_SIZE = 12
LENGTH = 160
LEARNING_RATE = 0.006
MOST_LOSS = 0.5
TOLERANCE = 1e-3
END = 1


def main() -> int:
    """Generates or checks the files; returns the exit status."""
    parser = argparse.ArgumentParser(description="Make ToyLlama.")
    target = parser.add_mutually_exclusive_group()
    target.add_argument("--output", type=Path, default=BUILTIN, help="folder to write below")
    target.add_argument("--check", action="store_true", help="compare; write nothing")
    arguments = parser.parse_args()
    start, differences = time.monotonic(), list[str]()
    if arguments.check:
        with tempfile.TemporaryDirectory() as directory:
            make(Path(directory))
            differences = compare(Path(directory), BUILTIN)
        print("\n".join(differences) or f"{BUILTIN} matches what the script generates")
    else:
        make(arguments.output)
    print(f"took {time.monotonic() - start:.1f} s")
    return 1 if differences else 0


def make(output: Path) -> None:
    """Writes the folder, with the checksum in the manifest; raises SystemExit if it learns too little."""
    folder = output / MODEL
    if output != BUILTIN:
        shutil.copytree(BUILTIN / MODEL, folder, dirs_exist_ok=True)
    write_tensors(folder / WEIGHTS, train().state_dict())
    found = hashlib.sha256((folder / WEIGHTS).read_bytes()).hexdigest()
    manifest = folder / "pytorch.yml"
    text = manifest.read_text(encoding="utf-8")
    manifest.write_text(re.sub(r"(weights_checksum: ).*", rf"\g<1>sha256:{found}", text), encoding="utf-8")


def train() -> Llama:
    """Returns the trained network, in float64."""
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    text = tokens()
    module = Llama(read_config(BUILTIN / MODEL / "config.json")).double()
    optimizer = torch.optim.AdamW(module.parameters(), lr=LEARNING_RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=STEPS)
    positions = torch.arange(LENGTH).expand(BATCH_SIZE, -1)
    losses = []
    for step in range(STEPS):
        starts = torch.randint(len(text) - LENGTH, (BATCH_SIZE, 1))
        given = text[starts + torch.arange(LENGTH + 1)]
        logits = module(given[:, :-1], positions)
        loss = functional.cross_entropy(logits.flatten(0, 1), given[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        if step % 100 == 99:
            print(f"step {step + 1}: loss {sum(losses[-100:]) / 100:.3f} nats per byte", flush=True)
    if (last := sum(losses[-100:]) / 100) > MOST_LOSS:
        raise SystemExit(f"the loss is {last:.3f}; at most {MOST_LOSS} may ship")
    return module


def tokens() -> torch.Tensor:
    """Returns the tokens of the licence, whose paragraphs are each one line and followed by the end token."""
    encode = ByteTokenizer().encode
    paragraphs = (ROOT / "LICENSE").read_text(encoding="utf-8").split("\n\n")
    lines = [" ".join(paragraph.split()) for paragraph in paragraphs]
    return torch.tensor([token for line in lines if line for token in (*encode(line), END)])


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Writes tensors as a safetensors file of float32."""
    header, parts, at = {}, [], 0
    for name, tensor in sorted(tensors.items()):
        part = tensor.detach().float().contiguous().numpy().tobytes()
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [at, at + len(part)]}
        parts.append(part)
        at += len(part)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(b"".join([len(text).to_bytes(8, "little"), text, *parts]))


def compare(made: Path, committed: Path) -> list[str]:
    """Returns a line for each tensor that differs by more than rounding."""
    kept = dict(read_tensors(committed / MODEL / WEIGHTS))
    found = {
        name: float((tensor - kept[name]).abs().max())
        for name, tensor in read_tensors(made / MODEL / WEIGHTS)
    }
    return [
        f"{MODEL / WEIGHTS}: {name} differs by {most:.2g}" for name, most in found.items() if most > TOLERANCE
    ]


if __name__ == "__main__":
    sys.exit(main())
