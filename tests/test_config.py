from __future__ import annotations

import re
from pathlib import Path

import pytest

from specedge.config import Config, GenerationConfig, SpeculationConfig, load_config
from specedge.configs import find, shipped
from specedge.contract import GenerationDefaults, SpeculationDefaults
from specedge.errors import ConfigError

MINIMAL = 'name = "app"\n[target]\nsource = "model"\n'


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write app.toml into an empty current folder."""
    monkeypatch.chdir(tmp_path)

    def writer(text: str) -> str:
        Path("app.toml").write_text(text, encoding="utf-8")
        return "app.toml"

    return writer


def test_defaults_fill_what_a_minimal_config_leaves_out(write):
    config = load_config(write(MINIMAL))
    assert config.draft is None
    assert config.export.context == 4096
    assert config.export.block_size == 64
    assert config.speculation.proposers == ["ngram", "draft"]
    assert config.generation.temperature == 0.0


def test_a_config_may_sample_by_default(write):
    text = """[speculation]
acceptance = "coupled"
[generation]
temperature = 0.7
top_k = 40
top_p = 0.9
min_p = 0.05
repetition_penalty = 1.1
frequency_penalty = 0.5
presence_penalty = -0.5
min_tokens = 3
"""
    config = load_config(write(MINIMAL + text))
    assert config.speculation.acceptance == "coupled"
    assert config.generation.model_dump() == {
        "temperature": 0.7,
        "max_tokens": 512,
        "top_k": 40,
        "top_p": 0.9,
        "min_p": 0.05,
        "repetition_penalty": 1.1,
        "frequency_penalty": 0.5,
        "presence_penalty": -0.5,
        "min_tokens": 3,
    }


def test_config_and_manifest_have_the_same_defaults_of_a_request():
    assert GenerationConfig().model_dump() == GenerationDefaults().model_dump()
    assert SpeculationConfig().model_dump() == SpeculationDefaults().model_dump()


@pytest.mark.parametrize("name", sorted(shipped()))
def test_every_shipped_config_loads_and_states_hash_and_licence(name):
    config = load_config(name)
    assert config.name == name
    for model in filter(None, (config.target, config.draft)):
        assert model.sha256 is not None
        assert model.licence is not None


@pytest.mark.parametrize("spelling", ["smollm2", "smollm2.toml", "configs/smollm2.toml"])
def test_a_shipped_config_is_found_by_name_from_any_folder(spelling, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find(spelling) == shipped()["smollm2"]


def test_a_missing_config_lists_the_shipped_ones(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"absent\.toml: no such file; .*smollm2-selfdraft"):
        load_config("absent.toml")


@pytest.mark.parametrize(
    ("addition", "message"),
    [
        (
            "[export]\ncontxt = 1\n",
            r"app\.toml: \[export\] unknown key 'contxt'; did you mean 'context'\? \(known: front",
        ),
        ("[exprt]\ncontext = 64\n", r"unknown key 'exprt'; did you mean 'export'\?"),
        ("[export]\nqqqqqq = 1\n", r"unknown key 'qqqqqq'; \(known: "),
        ("[draft]\nprecision = 'int4'\n", r"app\.toml: \[draft\] needs 'source'"),
        pytest.param(
            "[export]\ncontext = " + "9" * 5000, r"app\.toml: not valid TOML: Exceeds", id="digits"
        ),
        pytest.param("a = " + "[" * 5000, r"app\.toml: not valid TOML: .*too deeply", id="deep"),
        pytest.param(
            "[export]\ncontext = '" + "k" * 5000 + "'", r"\(5002 characters\): ", id="long"
        ),
        ("[export]\ncontext = 15\n", r"\[export\] context = 15: .*greater than or equal to 16"),
        ("[export]\ncontext = '4k'\n", r"\[export\] context = '4k': .*valid integer"),
        ("[export]\nmax_verify = 0\n", r"\[export\] max_verify = 0: .*equal to 1"),
        ("[export]\ncontext = 16\nmax_verify = 17\n", r"\[export\] max_verify = 17 is above conte"),
        ("[export]\nblock_size = 48\n", r"\[export\] block_size = 48: expected 32, 64 or 128"),
        (
            "[export]\nlowering = 'standard'\nsymmetric = false\n",
            r"\[export\] symmetric = false: lowering standard has no zero points",
        ),
        ("[export]\nactivations = 'bf16'\n", r"\[export\] activations = 'bf16': .*use standard"),
        ("[export]\nactivations = 'fp8'\n", r"activations = 'fp8': expected 'auto', 'fp32'"),
        ("[export]\nhidden_taps = [1, 1]\n", r"hidden_taps = \[1, 1\]: lists a layer twice"),
        ("[export]\nhidden_taps = [-1]\n", r"hidden_taps.0 = -1: .*equal to 0"),
        ("[export]\nlowering = 'trt'\n", r"lowering = 'trt': expected 'ort' or 'standard'"),
        ("[export]\nfrontend = 'torch'\n", r"frontend = 'torch': expected 'native' or 'optimum'"),
        ("[engines]\ncuda = 1\n", r"cuda is a value; expected a section, as in \[engines\.cuda\]"),
        ("[engines.gpu]\nx = 1\n", r"no engine 'gpu'; .*known: cpu, cuda"),
        ("[engines.trt]\nx = 1\n", r"no engine 'trt'; did you mean 'tensorrt'\? \(known: cpu,"),
        ("[engines.cuda]\nx = [1]\n", r"\[engines\.cuda\] x = \[1\]: expected text"),
        ("[export]\nmemory_budget = '6 giga'\n", r"memory_budget = '6 giga': .*not a size; write"),
        ("[export]\nmemory_budget = 0\n", r"memory_budget = 0: .*above zero"),
        (
            "[draft]\nsource = 'x'\nprecision = 'fp16'\n[export]\nactivations = 'fp32'\n",
            r"\[draft\] precision = 'fp16' with \[export\] activations = 'fp32'",
        ),
        (
            "[draft]\nsource = 'x'\nprecision = 'bf16'\n",
            r"\[draft\] precision = 'bf16': lowering ort .*use lowering = 'standard'",
        ),
        (
            "[draft]\nsource = 'x'\nprecision = 'fp8'\n",
            r"precision = 'fp8': expected 'fp32', 'fp16'",
        ),
        ("[draft]\nsource = 'x'\nsha256 = 'AB'\n", r"\[draft\] sha256 = 'AB': "),
        ("[speculation]\ndraft_length = -1\n", r"draft_length = -1: .*equal to 0"),
        ("[speculation]\ndraft_length = 16\n", r"\[speculation\] draft_length = 16 is above 15"),
        ("[speculation]\nmode = 'maybe'\n", r"mode = 'maybe': expected 'auto', 'on' or 'off'"),
        ("[speculation]\nproposers = ['eagle']\n", r"'eagle': expected 'ngram' or 'draft'"),
        ("[speculation]\nproposers = ['ngram', 'ngram']\n", r"lists a proposer twice"),
        ("[speculation]\nngram_min = 7\n", r"\[speculation\] ngram_min = 7 is above ngram_max = 6"),
        ("[speculation]\nmargin = 0.9\n", r"margin = 0\.9: .*equal to 1"),
        ("[speculation]\nmargin = 10.5\n", r"margin = 10\.5: .*equal to 10"),
        (
            "[speculation]\nacceptance = 'greedy'\n",
            r"acceptance = 'greedy': would refuse .*use auto",
        ),
        (
            "[speculation]\nacceptance = 'blok'\n",
            r"acceptance = 'blok': expected 'auto', 'rejection'",
        ),
        ("[generation]\ntemperature = -1\n", r"temperature = -1: .*equal to 0"),
        ("[generation]\ntemperature = 101\n", r"temperature = 101: .*equal to 100"),
        ("[generation]\ntemperature = nan\n", r"temperature = nan: .*finite number"),
        ("[generation]\ntemperature = 1e-9\n", r"temperature = 1e-09: expected 0 \(greedy\) or at"),
        ("[generation]\ntop_k = -2\n", r"top_k = -2: .*equal to -1"),
        ("[generation]\ntop_k = 0.5\n", r"top_k = 0\.5: .*valid integer"),
        ("[generation]\ntop_p = 0.0\n", r"top_p = 0\.0: .*greater than 0"),
        ("[generation]\ntop_p = 1.1\n", r"top_p = 1\.1: .*equal to 1"),
        ("[generation]\nmin_p = inf\n", r"min_p = inf: .*finite number"),
        ("[generation]\nrepetition_penalty = 0\n", r"repetition_penalty = 0: .*equal to 0\.01"),
        ("[generation]\nfrequency_penalty = 3\n", r"frequency_penalty = 3: .*equal to 2"),
        ("[generation]\npresence_penalty = '1'\n", r"presence_penalty = '1': .*valid number"),
        ("[generation]\nmin_tokens = -1\n", r"min_tokens = -1: .*equal to 0"),
        (
            "[generation]\nmin_tokens = 9\nmax_tokens = 8\n",
            r"\[generation\] min_tokens = 9 is above max_tokens = 8",
        ),
        ("[generation]\nseed = 7\n", r"\[generation\] unknown key 'seed'"),
        ("[generation]\nmax_tokens = 0\n", r"max_tokens = 0: .*equal to 1"),
        ("[generation]\nmax_tokens = true\n", r"max_tokens = True: .*valid integer"),
    ],
)
def test_a_bad_value_is_refused_where_it_stands(write, addition, message):
    with pytest.raises(ConfigError) as caught:
        load_config(write(MINIMAL + addition))
    assert "\n" not in str(caught.value)
    assert re.search(message, str(caught.value)), str(caught.value)
    assert str(caught.value).startswith("app.toml: ")


def test_every_finding_has_its_own_line(write):
    text = MINIMAL + "[export]\ncontext = 3\nmax_verify = 0\n[generation]\nmax_tokenz = 4\n"
    with pytest.raises(ConfigError) as caught:
        load_config(write(text))
    assert len(str(caught.value).splitlines()) == 3


def test_a_section_given_as_a_value_is_refused(write):
    with pytest.raises(ConfigError, match=r"export = 3: expected a section, as in \[export\]"):
        load_config(write("export = 3\n" + MINIMAL))


def test_a_syntax_error_names_its_line(write):
    with pytest.raises(ConfigError, match=r"app\.toml: not valid TOML: .*line 4"):
        load_config(write(MINIMAL + "context 4096\n"))


def test_a_config_that_is_not_utf8_names_the_byte(tmp_path):
    path = tmp_path / "app.toml"
    path.write_bytes(b'name = "\xff"')
    with pytest.raises(ConfigError, match="not UTF-8 at byte 8"):
        load_config(path)


@pytest.mark.parametrize(
    ("item", "read"),
    [
        ("export.context=512", lambda c: c.export.context == 512),
        ("export.memory_budget=2GiB", lambda c: c.export.memory_budget == 2 << 30),
        ('export.memory_budget="1.5 MB"', lambda c: c.export.memory_budget == 1_500_000),
        ("export.memory_budget=4096", lambda c: c.export.memory_budget == 4096),
        ("export.symmetric=true", lambda c: c.export.symmetric is True),
        ("speculation.proposers=['draft']", lambda c: c.speculation.proposers == ["draft"]),
        (
            "draft.source=other.gguf",
            lambda c: c.draft.source == "other.gguf",
        ),
        ("name=other", lambda c: c.name == "other"),
        ("target.source=a=b", lambda c: c.target.source == "a=b"),
    ],
)
def test_set_is_typed_as_toml_and_falls_back_to_text(write, item, read):
    config = load_config(write(MINIMAL), [item])
    assert isinstance(config, Config)
    assert read(config)


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ("export.context", "expected section.key=value"),
        ("=3", "expected section.key=value"),
        ("name.context=3", "'name' is a value, not a section"),
        ("export.context=3", r"--set export\.context: \[export\] context = 3: "),
        (
            "export.contxt=99",
            r"--set export\.contxt: \[export\] unknown key 'contxt'; did you mean",
        ),
    ],
)
def test_a_bad_set_is_refused_by_its_own_name(write, item, message):
    with pytest.raises(ConfigError, match=message):
        load_config(write(MINIMAL), [item])


def test_a_set_cannot_smuggle_in_a_second_key(write):
    with pytest.raises(ConfigError, match="name"):
        load_config(write(MINIMAL), ["name=1\nother = 2"])
