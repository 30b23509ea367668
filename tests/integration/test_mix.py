"""Several models at once, on a framework whose predictions take known times: what each is said to suffer."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import yaml
from fake_framework import SCRIPT

import inferometer
from inferometer.client.api.invocation import library_invocation
from inferometer.client.api.runner import Systems
from inferometer.client.cli.main import run
from inferometer.client.cli.output import FAILED_INPUTS
from inferometer.client.web.documents import evaluation_document, page_reports
from inferometer.evaluators.evaluation import Status
from inferometer.evaluators.jobs.job import JobCallbacks
from inferometer.evaluators.kinds.load.mix import mix_job, mix_search_job
from inferometer.evaluators.kinds.load.mix_request import MixRequest, MixSearchRequest
from inferometer.evaluators.load.queries import Outcome
from inferometer.evaluators.store.evaluation_store import EvaluationFilter
from inferometer.evaluators.store.opening import open_store
from inferometer.manifests.errors import EvaluationInterrupted

pytestmark = pytest.mark.usefixtures("ceiling_once")

SERVICE_S = 0.01
LOAD = {"framework_name": "Fake", "synthetic": True, "percentile": 90}
LOAD |= {"arrival": "constant", "initial_qps": 25}
LENGTHS = {
    ("measure", "mix"): ("--blocks=3", "--duration=0.4"),
    ("predict", "workload"): ("--duration=0.2",),
    ("predict", "max-qps"): ("--time_budget=6", "--min_duration=0.3"),
}


@pytest.fixture
def written(environment, manifest_folder, tmp_path):
    """Writes the file of a mix of models, by their names."""
    (manifest_folder / SCRIPT).write_text(json.dumps({"service_s": SERVICE_S}))

    def write(models):
        path = tmp_path / "mix.yaml"
        path.write_text(yaml.safe_dump([{"name": name, **LOAD, **own} for name, own in models.items()]))
        return path

    return write


@pytest.fixture
def mix(written, manifest_folder):
    """Measures a mix of models, by their names, and returns the evaluation of each, and the exit code."""

    def measured(models, *words, command=("measure", "mix")):
        options = ("--warmup=1", f"--manifests={manifest_folder}")
        code = run([*command, f"--mix={written(models)}", *LENGTHS[command], *options, *words])
        store = open_store(None, "inferometer", Path(os.environ["AGENT_DATA_DIR"]))
        try:
            found = list(store.find(EvaluationFilter(kinds=("mix", "mix_search"), include_interrupted=True)))
        finally:
            store.close()
        return {each.measurement.name: each for each in found}, code

    return measured


def ratio(evaluation):
    return evaluation.measurement.interference(50.0)


@pytest.mark.real_time
@pytest.mark.parametrize("remote", [False, True], ids=["here", "agent"])
@pytest.mark.parametrize(
    ("models", "waits_s"), [(("Locked", "Later"), 0.8 * SERVICE_S), (("Scripted", "Scripted"), 0.0)]
)
def test_a_model_that_waits_for_another_is_slower_by_what_the_other_takes(
    mix, spawn_agent, models, waits_s, remote
):
    """Both are due at the same times; the second's queries wait for the first's if they share a lock.

    The second asks for the lock when the first has held it for a fifth of its time. What else a query takes
    is the machine's.
    """
    place = {"agent": spawn_agent().address} if remote else {}

    found, code = mix(
        {
            name: {"model_name": model, **place}
            for name, model in zip(("first", "second"), models, strict=True)
        }
    )

    assert code == 0
    first, second = ratio(found["first"]), ratio(found["second"])
    alone = found["second"].measurement.alone
    alone_ns = np.median(np.concatenate([run.queries.since(run.cut_ns).latency_ns for run in alone]))
    factor = 1 + waits_s * 1e9 / alone_ns
    assert second.interval.low / 1.1 <= factor <= second.interval.high * 1.1
    assert first.ratio == pytest.approx(1.0, rel=0.25)


@pytest.mark.real_time
def test_a_mix_of_one_model_is_no_slower_than_the_model_alone(mix, capfd):
    found, _ = mix({"only": {"model_name": "Scripted"}})

    [only] = found.values()
    assert ratio(only).interval.low / 1.05 <= 1 <= ratio(only).interval.high * 1.05
    assert "no other model: together is the same as alone" in capfd.readouterr().out


def test_each_model_keeps_every_query_and_the_arrivals_of_a_pair_are_the_same(mix, tmp_path, capfd):
    poisson = {"model_name": "Scripted", "arrival": "poisson", "latency_bound": 1}
    found, code = mix(
        {"late": poisson, "failing": {"model_name": "Failing"}},
        "--allow_invalid",
        command=("predict", "workload"),
    )
    printed = capfd.readouterr()

    assert code == FAILED_INPUTS, printed.err
    late, failing = found["late"], found["failing"]
    assert late.group_id == failing.group_id
    assert (late.status, failing.status) == (Status.COMPLETE, Status.FAILED)
    assert "p90 missed 1 ms" in printed.out
    assert "failed: the fake framework failed" in printed.out
    assert "failed: no query was answered" in printed.err
    measured = late.measurement
    assert len(measured.alone) == len(measured.together) == 6
    checksums = [[each.checksum for each in side] for side in (measured.alone, measured.together)]
    assert checksums[0] == checksums[1]
    assert len(set(checksums[0])) == 6
    for each in (*measured.alone, *measured.together):
        assert each.queries.count(Outcome.ANSWERED) == len(each.queries) > 0
    assert measured.others == ("failing, constant at 25 queries/s",)
    assert measured.file == (tmp_path / "mix.yaml").read_text()
    assert ratio(failing) is None


def test_the_library_and_the_command_of_the_page_measure_the_same(written, manifest_folder, monkeypatch):
    path = str(written({"a": {"model_name": "Scripted"}, "b": {"model_name": "Scripted"}}))
    monkeypatch.setenv("AGENT_MANIFESTS", str(manifest_folder))

    found = inferometer.measure_group("mix", mix=path, blocks=2, duration_s=0.2, publish=False)

    assert [each.measurement.name for each in found] == ["a", "b"]
    page = evaluation_document(found[0], found[1:], page_reports(), lambda _: iter(()))
    assert page["command"]["line"] == f"agent measure mix --mix={path} --blocks=2 --duration=0.2"
    assert any(figure["key"] == "ratio_p50" for figure in page["figures"]), page["figures"]
    with pytest.raises(inferometer.ConfigurationError, match="blocks is 1; it must be at least 2"):
        inferometer.measure_group("mix", mix=path, blocks=1)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--initial_qps=3",), "mix: initial_qps is not an option of a mix; those of its models are in"),
        (("--model_name=Scripted",), "mix: model_name is not an option of a mix"),
        (("--server_statistics_hz=3",), "mix: server_statistics_hz is not an option of a mix"),
    ],
)
def test_options_of_a_model_are_refused_beside_a_mix(mix, capfd, words, message):
    found, code = mix({"a": {"model_name": "Scripted"}}, *words, command=("predict", "workload"))

    assert (found, code) == ({}, 2)
    assert message in capfd.readouterr().err


def test_the_smallest_bound_says_how_punctually_all_are_sent(mix, monkeypatch):
    seen = []

    def sent(_, __, limits):
        seen.append(limits.bound_ns)
        raise EvaluationInterrupted("seen")

    monkeypatch.setattr("inferometer.evaluators.kinds.load.mix.run_together", sent)
    mix({f"{ms}": {"model_name": "Scripted", **({"latency_bound": ms} if ms else {})} for ms in (20, 5, 0)})

    assert seen == [5_000_000]


@pytest.fixture
def stopped(written, manifest_folder, monkeypatch):
    """Runs a job of two models, stops it in a block or a probe, and returns its evaluations and progress."""

    def measured(job, request, place, **options):
        path = written({name: {"model_name": "Scripted", "latency_bound": 200} for name in ("a", "b")})
        monkeypatch.setenv("AGENT_MANIFESTS", str(manifest_folder))
        seen = []
        callbacks = JobCallbacks(
            on_progress=lambda each: seen.append(str(each)),
            stop_requested=lambda: bool(seen) and seen[-1].startswith(place),
        )
        run = job(request(mix=path, **options)).run
        return list(run(Systems(library_invocation()), callbacks)), seen

    return measured


def test_a_stop_keeps_complete_pairs(stopped):
    job, options = (mix_job, MixRequest), {"blocks": 4, "duration_s": 0.6}
    with pytest.raises(EvaluationInterrupted, match="before a pair of blocks was complete"):
        stopped(*job, "block 3 of 12", **options)
    found, seen = stopped(*job, "block 6 of 12", **options)

    kept = [(each.status, len(each.measurement.alone)) for each in found]
    assert kept == [(Status.INTERRUPTED, 1)] * 2
    order = ("a alone", "b alone", "together", "together", "b alone", "a alone")  # which balances a drift
    blocks = dict.fromkeys(each.partition("  ")[0] for each in seen if each.startswith("block"))
    assert list(blocks) == [f"block {number} of 12, {what}" for number, what in enumerate(order, 1)]


@pytest.mark.real_time
def test_two_models_that_share_a_lock_can_grow_until_it_is_always_held(mix, capfd):
    """Each takes 10 ms: at 25 queries/s each, a queue grows from twice the rates on."""
    models = {name: {"model_name": "Locked", "latency_bound": 50} for name in ("first", "second")}

    found, code = mix(models, "--allow_invalid", command=("predict", "max-qps"))

    printed = capfd.readouterr()
    assert code == 0, printed.err
    assert len({each.group_id for each in found.values()}) == 1
    searches = [each.measurement for each in found.values()]
    for each in searches:
        assert 1 <= each.factor.rate_qps <= 2.3
        assert each.answer.rate_qps == pytest.approx(25 * each.factor.rate_qps)
        assert [run.rate_qps for run in each.probes] == [run.rate_qps for run in searches[0].probes]
        assert all(len(run.queries) for run in each.probes)
    assert "times the rates of the mix" in printed.out


def test_a_search_for_the_factor_is_stored_repeated_and_shown(mix, tmp_path, manifest_folder, monkeypatch):
    models = {name: {"model_name": "Scripted", "latency_bound": 200} for name in ("a", "b")}
    brief = ("--time_budget=3", "--min_duration=0.2")
    _, code = mix(models, "--force", "--allow_invalid", *brief, command=("predict", "max-qps"))
    monkeypatch.setenv("AGENT_MANIFESTS", str(manifest_folder))
    path = str(tmp_path / "mix.yaml")
    given = {"mix": path, "time_budget_s": 3.0, "min_duration_s": 0.2}

    found = inferometer.measure_group("mix_search", publish=False, **given)

    assert code == 0
    assert [each.measurement.name for each in found] == ["a", "b"]
    page = evaluation_document(found[0], found[1:], page_reports(), lambda _: iter(()))
    assert "limited by" in str(page["facts"])
    line = f"agent measure mix_search --mix={path} --min_duration=0.2 --time_budget=3"
    assert page["command"]["line"] == line
    assert {"factor", "own_factor", "max_qps"} <= {figure["key"] for figure in page["figures"]}
    assert run(["info", "evaluation", "mix_search", "-f", "csv"]) == 0
    assert run(["info", "evaluation", "max-qps", "--probes", "-f", "csv"]) == 0


def test_a_stop_of_a_search_keeps_complete_probes(stopped):
    job, options = (mix_search_job, MixSearchRequest), {"min_duration_s": 0.5, "warm_up_queries": 1}
    with pytest.raises(EvaluationInterrupted, match="before a probe was complete"):
        stopped(*job, "probe 1 ", **options)
    found, _ = stopped(*job, "probe 3 ", **options)

    kept = [(each.status, len(each.measurement.probes), each.measurement.answer) for each in found]
    assert kept == [(Status.INTERRUPTED, 2, None)] * 2


def test_a_search_refuses_options_of_a_model_and_a_model_without_a_bound(mix, capfd):
    for words, message in (
        (
            ("--latency_bound=3",),
            "mix: latency_bound_ms is not an option of a mix; those of its models are in",
        ),
        ((), 'model 1: "a" has no latency bound; add latency_bound'),
    ):
        found, code = mix({"a": {"model_name": "Scripted"}}, *words, command=("predict", "max-qps"))

        assert (found, code) == ({}, 2)
        assert message in capfd.readouterr().err
