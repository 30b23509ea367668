"""Runs the commands of a Dockerfile in a folder that represents the image, without Docker.

    python -m tools.check_images onnxruntime-cpu      (names in docker/; all by default)

The folder's base/ is a fresh virtual environment and represents the Python of the base image; root/
represents the image's file system: /build, /opt, /program, /data and /etc in a command become folders below
it. Commands that change the system (apt-get, useradd, ldconfig, ...) are printed instead of run. At the end
the program runs as in the image: its help, its models, an evaluation, and a served agent with the image's
health check.
"""

from __future__ import annotations

import argparse
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import venv
from importlib.metadata import version
from pathlib import Path

from tools.dockerfile import Instruction, Stage, filled, read_stages

ROOT = Path(__file__).resolve().parents[1]
DOCKER = ROOT / "docker"
SYSTEM = frozenset({"apt-get", "rm", "useradd", "install", "ldconfig"})
DEFAULT_PORT = "50051"
_ABSOLUTE = re.compile(r"(?<![\w./*'~-])/(build|opt|program|data|etc|var)\b")
_STEP_TIMEOUT_S = 1800
_START_TIMEOUT_S = 60
_ONCE = ("--num_file_parts=1", "--publish=false")  # whatever the times are


class HostImage:
    """An image that is built and run in a folder of this machine.

    Args:
        name: The Dockerfile, without its suffix.
        folder: An empty folder.
    """

    def __init__(self, name: str, folder: Path) -> None:
        text = (DOCKER / f"{name}.Dockerfile").read_text(encoding="utf-8")
        self.stages = read_stages(text)
        self._root = folder / "root"
        self._directory = self._root
        base = folder / "base"
        venv.create(base)
        # this environment's pip, as ensurepip would also compile it, which takes longer than its use
        pip = [sys.executable, "-m", "pip", "--python", str(base / "bin" / "python")]
        named = f"pip=={version('pip')}"
        subprocess.run([*pip, "install", "--quiet", "--no-deps", "--no-compile", named], check=True)
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("AGENT_", "PYTHON"))}
        kept["PIP_COMPILE"] = "0"  # Python compiles what the program imports, which is a small part
        self._environment = {**kept, "PATH": f"{folder / 'base' / 'bin'}:{os.environ['PATH']}"}

    def build(self) -> None:
        """Executes the instructions of each stage."""
        for stage in self.stages:
            for instruction in stage.instructions:
                match instruction.keyword:
                    case "WORKDIR":
                        self._directory = Path(self._placed(instruction.value))
                        self._directory.mkdir(parents=True, exist_ok=True)
                    case "COPY":
                        self._copy(instruction)
                    case "RUN":
                        self._run_steps(instruction)
                    case "ENV":
                        for key, value in instruction.pairs.items():
                            self._environment[key] = filled(self._placed(value, ":"), self._environment)

    def run(self, *arguments: str) -> str:
        """Runs the image's entry point and returns its output."""
        return self._call([*self._entry(), *arguments], timeout_s=300)

    def check_served(self, secret_file: Path) -> None:
        """Runs the image's default command and its health check, and evaluates on that agent."""
        port = str(_free_port())
        self._environment["AGENT_SECRET_FILE"] = str(secret_file)
        # without TLS, which the image's default command requires
        command = [*self._entry(), *self._last.last("CMD").words, "--port", port, "--insecure"]
        _say(command)
        process = subprocess.Popen(command, cwd=self._directory, env=self._environment)
        try:
            self._wait_healthy(process, port)
            self.run("predict", "dataset", f"--agent=127.0.0.1:{port}", *_ONCE)
            process.send_signal(signal.SIGTERM)
            if code := process.wait(timeout=60):
                raise SystemExit(f"the served agent ended with {code}")
        finally:
            process.kill()
            process.wait()

    @property
    def _last(self) -> Stage:
        return self.stages[-1]

    def _entry(self) -> list[str]:
        name, *rest = self._last.last("ENTRYPOINT").words
        found = shutil.which(name, path=self._environment["PATH"])
        if found is None or not Path(found).is_relative_to(self._root):
            raise SystemExit(f"{name}: is not in the image (found: {found})")
        return [found, *rest]

    def _wait_healthy(self, process: subprocess.Popen[bytes], port: str) -> None:
        _, *check = self._last.last("HEALTHCHECK").value.partition("CMD ")
        words = Instruction("CMD", check[-1], {}, 0).words
        command = [*self._entry(), *(word.replace(DEFAULT_PORT, port) for word in words[1:])]
        _say(command)
        deadline = time.monotonic() + _START_TIMEOUT_S
        while process.poll() is None and time.monotonic() < deadline:
            if (
                subprocess.run(command, env=self._environment, capture_output=True, timeout=30).returncode
                == 0
            ):
                return
        raise SystemExit(f"the served agent is not healthy; exit code so far: {process.poll()}")

    def _placed(self, text: str, *before: str) -> str:
        """Replaces the image's absolute paths in a text by paths in the folder, also after ``before``."""
        placed = _ABSOLUTE.sub(lambda match: f"{self._root}/{match[1]}", text)
        for sign in before:
            placed = placed.replace(f"{sign}/opt", f"{sign}{self._root}/opt")
        return placed

    def _copy(self, instruction: Instruction) -> None:
        *sources, target = instruction.words
        destination = self._directory / self._placed(target)
        for source in sources:
            path = Path(self._placed(source)) if "from" in instruction.flags else ROOT / source
            if path.is_dir():
                ignored = shutil.ignore_patterns("__pycache__") if "from" not in instruction.flags else None
                if path != destination:
                    shutil.copytree(path, destination, ignore=ignored, dirs_exist_ok=True, symlinks=True)
            else:
                shutil.copy2(path, destination / path.name if target.endswith("/") else destination)

    def _run_steps(self, instruction: Instruction) -> None:
        for step in instruction.value.split(" && "):
            if step.split()[0] in SYSTEM:
                print(f"not run here: {step}", flush=True)
                continue
            if target := re.search(r"> *(/\S+)", step):
                Path(self._placed(target[1])).parent.mkdir(parents=True, exist_ok=True)
            # reuse downloads of other runs; here they make no layer larger
            step = self._placed(step).replace("--no-cache-dir ", "")
            self._call(["sh", "-euc", step], timeout_s=_STEP_TIMEOUT_S)

    def _call(self, command: list[str], timeout_s: float) -> str:
        _say(command)
        done = subprocess.run(
            command,
            cwd=self._directory,
            env=self._environment,
            stdout=subprocess.PIPE,
            text=True,
            timeout=timeout_s,
        )
        if done.returncode:
            raise SystemExit(f"{done.stdout}\nended with {done.returncode}: {' '.join(command)}")
        return done.stdout


def check(name: str, folder: Path) -> None:
    """Builds one image in an empty folder and runs it.

    Raises:
        SystemExit: Something does not work; the text says what.
    """
    image = HostImage(name, folder)
    image.build()
    if not image.run("--help").startswith("Usage: agent"):
        raise SystemExit("agent --help shows no usage")
    if "DigitsCNN" not in image.run("info", "models"):
        raise SystemExit("agent info models does not list DigitsCNN")
    if name.endswith("-cpu"):
        print(image.run("predict", "dataset", "--batch_size=16", *_ONCE), flush=True)
        secret_file = folder / "secret"
        secret_file.write_text(secrets.token_hex() + "\n", encoding="ascii")
        image.check_served(secret_file)
    print(f"{name}: works on this machine", flush=True)


def main() -> None:
    """Checks the images named on the command line."""
    parser = argparse.ArgumentParser(description="Run the commands of the Dockerfiles on this machine.")
    known = sorted(path.stem for path in DOCKER.glob("*.Dockerfile"))
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"default: all of {', '.join(known)}")
    names = parser.parse_args().names or known
    if unknown := sorted(set(names) - set(known)):
        parser.error(f"no such image: {', '.join(unknown)}; there are {', '.join(known)}")
    for name in names:
        with tempfile.TemporaryDirectory(prefix=f"{name}-") as folder:
            check(name, Path(folder))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _say(command: list[str]) -> None:
    print("$", " ".join(command), file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
