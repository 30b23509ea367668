"""``agent serve``: loading models and batching requests, set by flags and the configuration."""

from __future__ import annotations

import re
from itertools import product
from types import SimpleNamespace

import pytest

from inferometer.agent.hardware.environment import Device, DeviceKind, Precision
from inferometer.agent.inference.session import SessionOptions
from inferometer.agent.serving.batching import BatchingOptions, QueuePolicy, TimeoutAction
from inferometer.agent.serving.served_models import VersionPolicies
from inferometer.client.api.configuration import ServingSettings, load_configuration
from inferometer.client.commands.serve import serve
from inferometer.client.serving.options import BATCHING, serving_options, take_serving
from inferometer.manifests.errors import ConfigurationError
from tests.cli.conftest import served

LEFT_OUT = dict.fromkeys(BATCHING)


def chosen(given=(), configured=()):
    return serving_options({**LEFT_OUT, **dict(given)}, ServingSettings(**dict(configured)), SessionOptions())


def test_by_default_each_client_has_its_own_model_and_each_request_its_own_batch():
    options = chosen()

    assert options.batching == BatchingOptions(1, 0.0, (), 10_000)
    assert options.memory_limit_bytes is None
    assert not options.of("Mean").shares


def test_a_flag_goes_before_the_configuration_and_that_before_the_default():
    options = chosen(
        {"max_batch_size": 8, "memory_limit": 1.5},
        {"max_batch_size": 4, "max_queue_delay_ms": 3, "preferred_batch_sizes": (2, 4), "memory_limit": 9},
    )

    assert options.batching == BatchingOptions(8, 3.0, (2, 4), 10_000)
    assert options.memory_limit_bytes == 1.5 * 1024 * 1024
    assert options.of("Mean").shares


@pytest.mark.parametrize(
    ("flags", "precision"), [((), None), (("--dtype=float",), "float32"), (("--dtype=BFloat16",), "bfloat16")]
)
def test_the_device_and_the_precision_are_those_of_models_that_are_asked_for_by_name(flags, precision):
    context = serve.make_context("serve", ["--gpu", "--gpu_device_id=1", *flags])
    invocation = SimpleNamespace(configuration=SimpleNamespace(serving=ServingSettings()))
    session = take_serving(context.params, invocation).session
    assert session == SessionOptions(
        device=Device(DeviceKind.GPU, 1), precision=precision and Precision(precision)
    )


def test_the_configuration_file_has_the_names_of_the_flags(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("serving: {max_batch_size: 8, preferred_batch_sizes: [4], max_queue: 7}")
    assert chosen(configured=load_configuration(file).serving).batching == BatchingOptions(8, 0.0, (4,), 7)

    file.write_text("serving: {inline_predict_us: 0, threads: 3}")
    options = chosen(configured=load_configuration(file).serving)
    assert (options.batching.inline_predict_us, options.session.threads) == (0, 3)

    file.write_text("serving: {max_batch: 8}")
    with pytest.raises(ConfigurationError, match=r"serving\.max_batch: is not known; .* max_batch_size,"):
        load_configuration(file)


def test_a_model_has_settings_of_its_own_beside_those_of_all(monkeypatch, tmp_path):
    monkeypatch.setenv("OMP_NUM_THREADS", "")
    monkeypatch.setattr("inferometer.agent.hardware.environment.usable_physical_cores", lambda: 8)
    file = tmp_path / "config.yaml"
    file.write_text(
        "serving:\n  max_batch_size: 8\n  max_queue: 7\n  models:\n"
        "    A: {max_batch_size: 2, max_queue_delay_ms: 3, instances: 2}\n    B: {threads: 1}\n"
    )

    options = chosen(configured=load_configuration(file).serving)

    assert (options.batching, options.session.threads) == (BatchingOptions(8, max_queue=7), None)
    assert options.of("a").batching == BatchingOptions(2, 3.0, max_queue=7, instances=2)
    assert (options.of("A").threads, options.of("B").threads, options.of("C").threads) == (4, 1, None)
    assert options.of("A").with_instances(4).threads == 2  # the cores are divided anew
    assert options.of("B").with_instances(4).threads == 1
    assert options.of("B").batching == options.of("C").batching == options.batching


@pytest.mark.parametrize(
    ("models", "message"),
    [
        ("{A: {batch: 8}}", r"serving\.models\.A\.batch: is not known; fields: max_batch_size, .*threads$"),
        ("{A: {threads: 0}}", r"serving\.models\.A\.threads: found 0"),
        ("{A: {}, a: {}}", r"serving\.models: has a twice"),
        ("[A]", r"serving\.models: found .* allowed: a mapping"),
        ("{A: {preferred_batch_sizes: [4]}}", r"serving\.models\.A: preferred_batch_sizes has 4"),
    ],
)
def test_wrong_settings_of_a_model_are_named(tmp_path, models, message):
    file = tmp_path / "config.yaml"
    file.write_text(f"serving: {{models: {models}}}")
    with pytest.raises(ConfigurationError, match=message):
        chosen(configured=load_configuration(file).serving)


def test_the_version_policy_is_that_of_the_flag_or_of_the_configuration():
    assert chosen().versions == VersionPolicies()
    assert chosen(configured={"version_policy": "latest:2"}).versions == VersionPolicies.parse(["latest:2"])
    configured = {"version_policy": ("all", "A=latest:2")}
    assert str(chosen(configured=configured).versions.of("a")) == "latest:2"
    flags = chosen({"version_policy": ("specific:1,3",)}, configured).versions
    assert (str(flags.default), flags.by_model) == ("specific:1,3", {})


@pytest.mark.parametrize(
    ("instances", "threads", "variable", "expected"),
    [
        (1, None, None, (1, None)),  # the framework's own default
        (2, None, None, (2, 4)),
        (3, None, None, (3, 2)),
        (16, None, None, (16, 1)),
        (16, 4, None, (16, 4)),
        ("auto", None, None, (8, 1)),
        ("auto", 3, "4", (2, 3)),
        ("auto", 20, None, (1, 20)),
        (2, None, "6", (2, 6)),  # the variable is not divided
        ("auto", None, "4", (2, 4)),
    ],
)
def test_instances_share_the_cores(monkeypatch, tmp_path, instances, threads, variable, expected):
    monkeypatch.setenv("OMP_NUM_THREADS", variable or "")
    monkeypatch.setattr("inferometer.agent.inference.session.usable_cores", lambda: 8)
    monkeypatch.setattr("inferometer.agent.hardware.environment.usable_physical_cores", lambda: 8)
    file = tmp_path / "config.yaml"
    file.write_text(f"serving: {{instances: {instances}}}")
    for given, configured in (
        ({"instances": instances}, ServingSettings()),
        ({}, load_configuration(file).serving),
    ):
        options = serving_options({**LEFT_OUT, **given}, configured, SessionOptions(threads=threads))
        assert (options.batching.instances, options.session.threads) == expected
        assert options.of("Mean").shares == (expected[0] > 1)  # one queue for all clients


@pytest.mark.parametrize(("threads", "expected"), [(None, 4), (3, 3)])
def test_pinned_instances_have_a_known_number_of_threads(monkeypatch, tmp_path, threads, expected):
    monkeypatch.setenv("OMP_NUM_THREADS", "")
    monkeypatch.setattr("inferometer.agent.hardware.environment.usable_processors", lambda: set(range(4)))
    monkeypatch.setattr("inferometer.agent.hardware.environment.usable_physical_cores", lambda: 4)
    file = tmp_path / "config.yaml"
    file.write_text("serving: {pin: true}")
    options = serving_options(LEFT_OUT, load_configuration(file).serving, SessionOptions(threads=threads))
    assert (options.batching.pin, options.session.threads) == (True, expected)


def test_auto_is_one_instance_on_a_gpu_which_all_would_share():
    session = SessionOptions(device=Device(DeviceKind.GPU))
    assert (
        serving_options({**LEFT_OUT, "instances": "auto"}, ServingSettings(), session).batching.instances == 1
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *product(("instances", "workers"), ("0", "many", "1.5", "[2]")),
        ("workers", "129"),
        ("workers", "auto"),
    ],
)
def test_invalid_numbers_in_the_file_are_named(tmp_path, field, value):
    file = tmp_path / "config.yaml"
    file.write_text(f"serving: {{{field}: {value}}}")
    with pytest.raises(ConfigurationError, match=rf"field serving\.{field}.*: found .*; allowed: "):
        load_configuration(file)


@pytest.mark.parametrize(("flags", "workers"), [((), 2), (("--workers=3",), 3), (("--workers=1",), None)])
def test_the_file_has_the_number_of_workers(agent, tmp_path, monkeypatch, flags, workers):
    file = tmp_path / "config.yaml"
    file.write_text("serving: {workers: 2}")
    counts = []

    def refuse(_, count, __):
        counts.append(count)
        raise ConfigurationError("as many as that")

    monkeypatch.setattr("inferometer.client.commands.serve.Workers", refuse)
    monkeypatch.setattr("inferometer.client.commands.serve.serve_until_stopped", lambda *_: None)
    done = agent("--config", file, "serve", "--port=0", *flags)
    assert done.code == (0 if workers is None else 2), done.error
    assert counts == ([] if workers is None else [workers])


def test_priorities_and_their_policies_have_tritons_names(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(
        "serving: {priority_levels: 3, default_priority_level: 2, "
        "default_queue_policy: 'timeout_action=DELAY,default_timeout_microseconds=5000', "
        "priority_queue_policy: ['1:max_queue_size=7', '3:allow_timeout_override=false']}"
    )
    batching = chosen(configured=load_configuration(file).serving).batching

    assert (batching.priority_levels, batching.default_priority_level) == (3, 2)
    assert batching.default_queue_policy == QueuePolicy(TimeoutAction.DELAY, 5000)
    assert batching.policy_of(1) == QueuePolicy(max_queue_size=7)
    assert batching.policy_of(2) == batching.default_queue_policy
    assert batching.policy_of(3) == QueuePolicy(allow_timeout_override=False)
    assert batching.has_policies
    assert not chosen().batching.has_policies


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--priority_levels=2"], "default_priority_level is 0; allowed: 1 to priority_levels, 2"),
        (
            ["--default_priority_level=1"],
            "default_priority_level is 1; allowed: none without priority_levels",
        ),
        (["--priority_levels=1001"], "priority_levels is 1001; allowed: 0 to 1000"),
        (
            [
                "--priority_levels=1",
                "--default_priority_level=1",
                "--priority_queue_policy=2:max_queue_size=1",
            ],
            "priority_queue_policy has level 2; allowed: 1 to priority_levels, 1",
        ),
        (["--priority_queue_policy=max_queue_size=1"], "give LEVEL:NAME=VALUE, such as 1:max_queue_size=100"),
        (["--default_queue_policy=max_queue=1"], 'give NAME=VALUE with commas between; did you mean "max_'),
        (
            ["--default_queue_policy=timeout_action=drop"],
            'timeout_action is "drop"; allowed: REJECT or DELAY',
        ),
        (["--default_queue_policy=max_queue_size=-1"], 'max_queue_size is "-1"; allowed: a whole number'),
        (["--default_queue_policy=allow_timeout_override=1"], 'is "1"; allowed: true or false'),
        (["--default_queue_policy=max_queue_size=1,max_queue_size=2"], "has max_queue_size twice"),
        (["--version_policy=latest"], 'version_policy: found "latest"; allowed: all, latest:N with N from 1'),
        (["--version_policy=all", "--version_policy=digitscnn=latest:x"], 'version_policy: found "latest:x"'),
        (["--preferred_batch_sizes=4,x"], '"4,x" is not a list of sizes; give numbers with commas'),
        (["--preferred_batch_sizes=8"], "preferred_batch_sizes has 8; allowed: 1 to max_batch_size, 1"),
        (["--max_queue_delay_ms=nan"], "nan is not a finite number"),
        (
            ["--inline_predict_us=20000"],
            "inline_predict_us is 20000; allowed: 0 to 10000, since all other calls",
        ),
        (["--gpu_device_id=1"], "--gpu_device_id requires --gpu"),
        (["--gpu", "--gpu_device_id=1", "--gpus=0,1"], "requires --gpu, and excludes --gpus"),
        (["--gpus=0,1"], "gpu:0,1: each GPU needs an instance, but instances is 1"),
        (["--gpus=one"], 'gpus is "one"; give indices of GPUs, such as 0,1'),
        (["--instances=0"], '"0" is neither 1 to 64 nor auto'),
        (["--instances=65"], '"65" is neither 1 to 64 nor auto'),
        (["--instances=many"], '"many" is neither 1 to 64 nor auto'),
        (["--pin", "--threads=999"], "pin: instances times threads are 1 × 999 = 999, but only "),
        (
            ["--pin", "--threads=1", "--instances=64", "--workers=99"],
            "pin: workers times instances times threads are 99 × 64 × 1 = 6336, but only",
        ),
    ],
)
def test_options_that_make_no_sense_are_refused_in_one_line(agent, flags, line):
    done = agent("serve", "--port=0", *flags)

    assert done.code == 2
    assert line in done.error


def test_policy_for_a_model_that_does_not_exist_names_the_nearest(agent):
    done = agent("serve", "--port=0", "--version_policy=DigitCNN=latest:1")

    assert done.code == 2
    assert 'did you mean "DigitsCNN"' in done.error


def test_a_workload_at_an_agent_tells_its_queue_and_its_batches(agent):
    with served("--max_batch_size=16", "--max_queue_delay_ms=50") as (address, _):
        done = agent(
            *("predict", "workload", f"--agent={address}", "--framework_name=ONNXRuntime", "--synthetic"),
            *("--initial_qps=200", "--duration=0.5", "--allow_invalid"),
        )

    assert done.code == 0, done.stderr
    assert re.search(r"^queue +p50 ", done.stdout, re.MULTILINE)
    sizes = re.search(r"^batches .*: ((?:\d+: \d+(?:, )?)+)$", done.stdout, re.MULTILINE)
    assert sizes, done.stdout
    assert max(int(pair.split(":")[0]) for pair in sizes[1].split(", ")) > 1


@pytest.mark.parametrize(
    ("workers", "flags", "variable", "threads"),
    [
        (4, (), None, 2),
        (16, (), None, 1),
        (4, ("--threads=3",), None, 3),
        (4, (), "6", 6),  # the variable says how many threads each has
    ],
)
def test_workers_divide_the_memory_limit_and_the_cores(agent, monkeypatch, workers, flags, variable, threads):
    seen = []

    def refuse(options, count, _):
        seen.append((count, options.serving))
        raise ConfigurationError("seen")

    monkeypatch.setattr("inferometer.client.commands.serve.Workers", refuse)
    monkeypatch.setattr("inferometer.agent.hardware.environment.usable_physical_cores", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if variable:
        monkeypatch.setenv("OMP_NUM_THREADS", variable)

    assert (
        agent("serve", "--port=0", f"--workers={workers}", "--memory_limit=64", *flags).error == "agent: seen"
    )

    [(count, serving)] = seen
    assert (count, serving.session.threads) == (workers, threads)
    assert serving.memory_limit_bytes == 64 * 1024 * 1024 // workers
