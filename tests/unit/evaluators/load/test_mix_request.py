"""The file of a mix: each model's options are those of the commands, and a wrong one is named."""

import pytest

from inferometer.evaluators.kinds.load.mix import mix_job
from inferometer.evaluators.kinds.load.mix_request import MIX_S, MixRequest, MixSearchRequest
from inferometer.manifests.errors import ConfigurationError

MODELS = """
- name: vision
  model_name: DigitsCNN
  framework_name: ONNXRuntime
  initial_qps: 80
  arrival: gamma:cv=2
  latency_bound: 20
  percentile: 95
  threads: 1
  instances: 2
- model_name: ResNet_v1_50
  agent: host:50051
  synthetic: true
  latency_bound_ms: 7
"""


@pytest.fixture
def mix(tmp_path):
    path = tmp_path / "mix.yaml"

    def request(text, **options):
        path.write_text(text)
        return MixRequest(mix=path, **options)

    return request


def test_each_model_has_a_load_of_its_own(mix):
    request = mix(MODELS, blocks=4, timeout_ms=500.0, seed=7)

    vision, other = request.models.values()
    options = vision.load_options()
    assert list(request.models) == ["vision", "ResNet_v1_50"]
    assert (options.rate_qps, options.arrival, options.percentile) == (80, "gamma:cv=2", 95)
    assert options.instances == 2
    assert (options.latency_bound_ms, options.timeout_ms, options.seed) == (20, 500.0, 7)
    assert options.max_duration_s == MIX_S / (4 * 3)
    assert (vision.system.framework_name, vision.system.session.threads) == ("ONNXRuntime", 1)
    assert (other.system.agents, other.synthetic, other.latency_bound_ms) == (("host:50051",), True, 7)
    assert other.system.session.seed == 7
    assert request.text == MODELS


def test_a_priority_is_that_of_the_requests_to_a_server(mix):
    [load] = mix("- {model_name: A, agent: 'kserve://a:1', priority: 2}").models.values()

    assert load.system.priority == 2


def test_a_given_duration_is_that_of_a_block(mix):
    assert {each.duration_s for each in mix(MODELS, duration_s=3.0).models.values()} == {3.0}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "mix.yaml: is not a list of models"),
        ("[]", "is not a list of models"),
        ("model_name: A", "is not a list of models"),
        ("- {model_name: [", "cannot be read as YAML"),
        ("- 3", "model 1: names no model; add model_name"),
        ("- {name: a}", "model 1: names no model; add model_name"),
        ("- {model_name: 3}", "model 1: model is 3; it must be text"),
        ("- {model_name: A}\n- {model_name: A}", 'model 2: "A" is the name of an earlier model; add another'),
        ("- {model_name: A, name: 3}", "name is 3; it must be text"),
        ("- {model_name: A, inital_qps: 3}", 'unknown option "inital_qps"; did you mean "initial_qps"'),
        ("- {model_name: A, latency_bound: 2, latency_bound_ms: 3}", "latency_bound_ms is another name of"),
        ("- {model_name: A, schedule: x.csv}", 'unknown option "schedule"'),
        ("- {model_name: A, model_path: x.onnx}", 'unknown option "model_path"'),
        ("- {model_name: A, 7: 3}", 'unknown option "7"'),
        ("- {model_name: A, initial_qps: -3}", "initial_qps is -3; it must be above 0"),
        ("- {model_name: A, initial_qps: many}", "initial_qps is 'many'; it must be a number"),
        ("- {model_name: A, percentile: 100}", "percentile is 100"),
        ("- {model_name: A, latency_bound: 0}", "latency_bound_ms is 0"),
        ("- {model_name: A, arrival: poison}", 'unknown arrival process "poison"; did you mean "poisson"'),
        ("- {model_name: A, arrival: 3}", "arrival is 3; it must be text"),
        ("- {model_name: A, weights: old}", 'unknown weights "old"'),
        ("- {model_name: A, threads: 0}", "threads is 0"),
        ("- {model_name: A, agent: any}", 'agent is "any"; a model of a mix names the address of one agent'),
        ("- {model_name: A, agent: 'a:1,b:2'}", 'agent is "a:1,b:2"; a model of a mix names the address'),
        ("- {model_name: A, agent: 'a:1', max_batch_size: 2}", "applies only to a model in this process"),
        ("- {model_name: A, priority: 1}", "priority is only for a model on a server of the Open Inference"),
        ("- {model_name: A, agent: 'a:1', priority: 1}", "priority is only for a model on a server"),
        ("- {model_name: A, agent: 'kserve://a:1', priority: -1}", "priority is -1; it must be at least 0"),
        (
            "- {model_name: A, agent: 'kserve://a:1', priority: high}",
            "priority is 'high'; it must be a whole",
        ),
        ("- {model_name: A, synthetic: true, dataset_name: b}", "synthetic needs no dataset"),
    ],
)
def test_what_is_wrong_in_the_file_is_named(mix, text, message):
    with pytest.raises(ConfigurationError, match=message) as caught:
        mix(text)

    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("- {model_name: A}", {}, 'model 1: "A" has no latency bound; add latency_bound, such as'),
        (
            "- {model_name: A, latency_bound: 2, arrival: 'ramp:to_share=1'}",
            {},
            "model 1: arrival ramp has no",
        ),
        ("- {model_name: A, latency_bound: 2, percentile: 99.9999}", {}, "model 1: percentile is 99.9999"),
        (
            "- {model_name: A, latency_bound: 900}",
            {"time_budget_s": 9.0},
            "model 1: time_budget is 9 s; with",
        ),
        ("- {model_name: A, latency_bound: 2}", {"tolerance": 0.0}, "tolerance is 0"),
    ],
)
def test_what_a_search_for_the_factor_cannot_judge_is_named(mix, text, options, message, tmp_path):
    mix("- {model_name: A}")
    (tmp_path / "mix.yaml").write_text(text)

    with pytest.raises(ConfigurationError, match=message) as caught:
        MixSearchRequest(mix=tmp_path / "mix.yaml", **options)

    assert "\n" not in str(caught.value)


def test_each_model_of_a_search_has_the_options_of_the_search(mix, tmp_path):
    mix("- {model_name: A, latency_bound: 2}\n- {model_name: B, latency_bound: 3, initial_qps: 7}")

    request = MixSearchRequest(mix=tmp_path / "mix.yaml", time_budget_s=30.0, min_duration_s=1.0, seed=4)

    first, second = request.models.values()
    assert (first.rate_qps, first.latency_bound_ms, second.rate_qps, second.latency_bound_ms) == (16, 2, 7, 3)
    for each in (first, second):
        assert (each.time_budget_s, each.least_duration_s, each.tolerance, each.seed) == (30, 1, 0.02, 4)
    assert request.given == {
        "mix": str(tmp_path / "mix.yaml"),
        "time_budget_s": 30.0,
        "min_duration_s": 1.0,
        "seed": 4,
    }


def test_a_file_that_is_too_long_is_refused_and_not_cut(mix):
    with pytest.raises(ConfigurationError, match=r"mix.yaml: larger than 4194304 bytes, the limit for a mix"):
        mix("- model_name: A\n" + "#" * 5_000_000 + "\n- model_name: B\n")


def test_a_file_that_is_missing_is_named(tmp_path):
    with pytest.raises(ConfigurationError, match=r"none.yaml: cannot be read: No such file"):
        MixRequest(mix=tmp_path / "none.yaml")


@pytest.mark.parametrize(("name", "value"), [("blocks", 1), ("duration_s", 0.0), ("timeout_ms", 0.5)])
def test_an_option_out_of_range_is_refused(mix, name, value):
    with pytest.raises(ConfigurationError, match=name.removesuffix("_s")):
        mix(MODELS, **{name: value})


@pytest.mark.parametrize(
    ("rate_qps", "message"),
    [
        (0.001, "mix: A: no query arrives within 0.1 s; make it longer"),
        (1e12, "mix: A: 1e\\+12 queries/s for 0.1 s are some 1e\\+11 queries"),
        (300_000, "queries/s is more than .*, half of what this machine can send"),
    ],
)
def test_a_load_that_cannot_be_sent_is_refused_before_a_model_is_opened(mix, rate_qps, message):
    request = mix(
        f"- {{model_name: A, arrival: constant, initial_qps: {rate_qps}}}", blocks=2, duration_s=0.1
    )

    with pytest.raises(ConfigurationError, match=message):
        mix_job(request)


def test_the_arrivals_of_a_model_differ_from_block_to_block_and_from_those_of_others(mix):
    text = "- {model_name: A, initial_qps: 50}\n- {model_name: B, initial_qps: 50}"
    seen = []
    for seed in (1, 1, 2):
        models = mix_job(mix(text, seed=seed, blocks=3, duration_s=1.0)).run.args[1].args[0]
        seen.append([schedule.checksum for schedules in models.values() for schedule in schedules])

    assert seen[0] == seen[1]
    assert len({*seen[0], *seen[2]}) == 12
