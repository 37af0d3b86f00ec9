"""A Triton model repository, by its schema and by its model.py under a stub of the backend.

What is not tested here is a server: see docs/triton.md.
"""

from __future__ import annotations

import inspect
import json
import os
from pathlib import Path

import pytest
from tritonclient.grpc import model_config_pb2 as pb

import specedge
from specedge.contract import MANIFEST
from specedge.errors import BundleError, EngineError, ExportError, OptionError
from specedge.export.triton import model as packaged
from specedge.export.triton import write_repository
from tests import tiny
from triton_stub import Server, TritonModelException, read_config

FAKE = {"engine": "fake"}


@pytest.fixture
def repository(tmp_path):
    return tmp_path / "models"


@pytest.fixture
def serve(tmp_path, monkeypatch):
    """A server of a tiny bundle; `bundle` and `parameters` as wanted."""

    def start(bundle: Path | None = None, **parameters: str) -> Server:
        folder = tiny.write_bundle(tmp_path / "b") if bundle is None else bundle
        model = write_repository(
            folder, tmp_path / "models", parameters=FAKE | parameters, force=True
        )
        return Server(model, monkeypatch)

    return start


@pytest.fixture
def euros(tmp_path):
    """A bundle that says "€é" for ever, one byte of it a token."""
    inner = tiny.byte_tokenizer()
    ids = [inner.token_to_id(word) for word in ("â", "Ĥ", "¬", "Ã", "©")]
    circle = dict(zip(ids, [*ids[1:], ids[0]], strict=True))
    rule = {"rule": "table", "successors": {str(k): v for k, v in circle.items()}}
    return tiny.write_bundle(tmp_path / "euros", inner=inner, rule=rule | {"default": ids[0]})


def read_manifest(bundle):
    return json.loads((bundle / MANIFEST).read_text())


def own_text(bundle, prompt, **options):
    with specedge.load(bundle, engine="fake") as model:
        return model.generate(prompt, **options)


# --- the repository -----------------------------------------------------------------------------


def test_the_config_is_what_a_server_expects(tiny_bundle, repository):
    chosen = {**FAKE, "speculation": "on", "proposers": "ngram", "threads": "2", "memory": "1 GiB"}
    model = write_repository(tiny_bundle, repository, name="m", parameters=chosen, instances=3)
    config = read_config(model)
    assert (config.name, config.backend, config.max_batch_size) == ("m", "python", 0)
    assert config.model_transaction_policy.decoupled
    inputs = {each.name: (each.data_type, list(each.dims), each.optional) for each in config.input}
    assert inputs == {
        "prompt": (pb.TYPE_STRING, [1], True),
        "messages": (pb.TYPE_STRING, [1], True),
        "options": (pb.TYPE_STRING, [1], True),
        "stream": (pb.TYPE_BOOL, [1], True),
    }
    assert {each.name: (each.data_type, list(each.dims)) for each in config.output} == {
        "text": (pb.TYPE_STRING, [1]),
        "finish_reason": (pb.TYPE_STRING, [1]),
        "result": (pb.TYPE_STRING, [1]),
        "sample": (pb.TYPE_INT32, [1]),
    }
    (group,) = config.instance_group
    assert (group.count, group.kind) == (3, pb.ModelInstanceGroup.KIND_CPU)
    assert {key: each.string_value for key, each in config.parameters.items()} == chosen


def test_the_model_is_the_packaged_file_beside_a_copy_of_the_bundle(tiny_bundle, repository):
    model = write_repository(tiny_bundle, repository)
    assert model == repository / "tiny"
    assert (model / "1/model.py").read_bytes() == Path(packaged.__file__).read_bytes()
    copied = {p.relative_to(model / "1/bundle") for p in (model / "1/bundle").rglob("*")}
    assert copied == {p.relative_to(tiny_bundle) for p in tiny_bundle.rglob("*")}
    assert [p.name for p in repository.iterdir()] == ["tiny"]


def test_a_link_leads_to_the_bundle_from_anywhere(tiny_bundle, repository, monkeypatch):
    monkeypatch.chdir(tiny_bundle.parent)
    model = write_repository(tiny_bundle.name, repository, link=True)
    assert (model / "1/bundle").is_symlink()
    assert os.path.samefile(model / "1/bundle", tiny_bundle)


def test_every_keyword_of_load_can_be_a_parameter():
    known = {*packaged._NUMBERS, *packaged._TEXTS, *packaged._FLAGS, "proposers"}
    assert known == set(inspect.signature(specedge.load).parameters) - {"path"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"theads": "2"}, "no parameter 'theads'"),
        ({"threads": "two"}, "threads: expected an integer"),
        ({"threads": "0"}, "threads: expected 1"),
        ({"speculation": "maybe"}, "speculation: expected auto"),
        ({"proposers": "medusa"}, "no proposer 'medusa'"),
        ({"context": "100000"}, "context: expected 1..256"),
        ({"exact": "yes"}, "exact: expected true or false"),
        ({"canary": "2"}, "canary: expected 0..1"),
        ({"memory": "much"}, "memory:"),
    ],
)
def test_a_parameter_that_cannot_be_honoured_is_refused_before_a_server_runs(
    tiny_bundle, repository, given, said
):
    with pytest.raises(OptionError, match=said.replace("(", r"\(")):
        write_repository(tiny_bundle, repository, parameters=given)
    assert not repository.exists()


@pytest.mark.parametrize(
    ("graph", "given", "said"),
    [
        (
            {},
            {"engine": 'x"}'},
            "engine: no engine 'x\"}'; there are auto, cpu, cuda, .*choose one",
        ),
        ({}, {"engine": "cdua"}, "engine: no engine 'cdua'; .*did you mean cuda"),
        ({}, FAKE | {"draft_engine": "gpu"}, "draft_engine: no engine 'gpu'; .*did you mean cuda"),
        ({}, {"engine": "cuda"}, "engine cuda: the target has float32 activations"),
        ({}, {"engine": "tensorrt"}, "engine tensorrt: the target is made of ONNX Runtime's"),
        ({}, FAKE | {"draft_engine": "tensorrt-rtx"}, "engine tensorrt-rtx: the draft is made of"),
        ({"lowering": "standard", "kv_dtype": "bfloat16"}, {}, "engine cpu: the target has bfloat"),
    ],
)
def test_an_engine_that_does_not_run_the_graphs_is_refused_before_a_server_runs(
    tmp_path, repository, graph, given, said
):
    bundle = tiny.write_bundle(tmp_path / "b", draft=True)
    tiny.edit_manifest(bundle, target=read_manifest(bundle)["target"] | graph)
    with pytest.raises(EngineError, match=said):
        write_repository(bundle, repository, parameters=given)
    assert not repository.exists()


def test_an_engine_for_a_draft_that_is_not_there_is_refused(tiny_bundle, repository):
    with pytest.raises(OptionError, match="the bundle has no draft"):
        write_repository(tiny_bundle, repository, parameters=FAKE | {"draft_engine": "cpu"})
    assert not repository.exists()


@pytest.mark.parametrize("given", [{"speculation": "off"}, {"proposers": "ngram"}])
def test_an_engine_for_a_draft_that_does_not_draft_is_refused(tmp_path, repository, given):
    bundle = tiny.write_bundle(tmp_path / "b", draft=True)
    with pytest.raises(OptionError, match=r"^draft_engine: cpu is given, but"):
        write_repository(bundle, repository, parameters=FAKE | given | {"draft_engine": "cpu"})
    assert not repository.exists()


@pytest.mark.parametrize("given", [{}, {"engine": "tensorrt"}, {"draft_engine": "tensorrt-rtx"}])
def test_plans_are_copied_where_an_engine_runs_them_and_strangers_never(
    tmp_path, repository, given
):
    bundle = tiny.write_bundle(tmp_path / "b", draft=True)
    said = read_manifest(bundle)
    standard = {role: said[role] | {"lowering": "standard"} for role in ("target", "draft")}
    tiny.edit_manifest(bundle, **standard)
    for place in ("probes/a.json", "plans/sm89/a.plan", "notes.txt", "target/model.onnx.bak"):
        (bundle / place).parent.mkdir(parents=True, exist_ok=True)
        (bundle / place).write_text("x")
    copied = write_repository(bundle, repository, parameters=given) / "1/bundle"
    found = {path.relative_to(copied).as_posix() for path in copied.rglob("*") if path.is_file()}
    plans = {"plans/sm89/a.plan"} if given else set()
    assert found == {MANIFEST, *said["files"], "probes/a.json"} | plans


def test_a_model_is_replaced_only_when_told(tiny_bundle, repository):
    model = write_repository(tiny_bundle, repository)
    (model / "stale").touch()
    with pytest.raises(ExportError, match="--force"):
        write_repository(tiny_bundle, repository)
    assert write_repository(tiny_bundle, repository, force=True) == model
    assert not (model / "stale").exists()


def test_a_folder_of_somebody_else_is_never_replaced(tiny_bundle, repository):
    (repository / "tiny").mkdir(parents=True)
    (repository / "tiny/config.pbtxt").write_text('name: "tiny"')
    with pytest.raises(ExportError, match="not a model that specedge wrote"):
        write_repository(tiny_bundle, repository, force=True)


@pytest.mark.parametrize("name", ["", "a/b", "..", "-x", "é", 'a"b'])
def test_a_name_that_a_server_or_a_folder_cannot_have_is_refused(tiny_bundle, repository, name):
    with pytest.raises(ExportError, match="model name"):
        write_repository(tiny_bundle, repository, name=name)


def test_nothing_stays_when_the_copy_fails(tiny_bundle, repository, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.copytree", full)
    with pytest.raises(ExportError, match="No space left"):
        write_repository(tiny_bundle, repository)
    assert not repository.exists()


def test_a_disk_that_fills_while_files_are_copied_is_one_line(tiny_bundle, repository, monkeypatch):
    def full(source, target, **_):
        raise OSError(28, "No space left on device", str(source), None, str(target))

    monkeypatch.setattr("shutil.copyfile", full)
    with pytest.raises(ExportError, match=r"cannot be written: No space left on device; choose"):
        write_repository(tiny_bundle, repository / "new" / "models")
    assert not repository.exists()


def test_an_altered_bundle_is_not_served(tiny_bundle, repository):
    (tiny_bundle / "tokenizer.json").write_text("{}")
    with pytest.raises(BundleError):
        write_repository(tiny_bundle, repository)


# --- serving ------------------------------------------------------------------------------------


def test_responses_are_the_events_of_the_embedded_api_in_order(serve, tiny_bundle):
    server = serve(tiny_bundle)
    request = server.ask(prompt="hello", options='{"max_tokens": 40}')
    own = own_text(tiny_bundle, "hello", max_tokens=40)
    assert "".join(request.texts) == own.text
    assert len(request.texts) > 3
    assert request.sender.final
    *before, last = [each.said() for each in request.sender.sent]
    assert all((each.finish_reason, each.result) == ("", "") for each in before)
    assert last.finish_reason == own.finish_reason
    result = json.loads(last.result)
    assert (result["text"], result["tokens"]) == (own.text, own.tokens)
    assert result["metrics"]["generated"] >= len(own.tokens)


def test_without_streaming_there_is_one_response_with_all_of_it(serve, tiny_bundle):
    server = serve(tiny_bundle)
    options = {"max_tokens": 9, "n": 2, "temperature": 1.0, "seed": 1}
    request = server.ask(prompt="x", options=json.dumps(options), stream=False)
    own = own_text(tiny_bundle, "x", **options)
    (only,) = request.sender.sent
    assert (only.said().text, only.said().sample) == (own.text, 0)
    assert len(json.loads(request.last.result)["samples"]) == 2


def test_samples_come_one_after_the_other_with_their_number(serve):
    request = serve().ask(prompt="x", options='{"max_tokens": 3, "n": 2, "temperature": 1.0}')
    said = [each.said() for each in request.sender.sent]
    assert [each.sample for each in said] == sorted(each.sample for each in said)
    assert [each.sample for each in said if each.finish_reason] == [0, 1]
    assert [bool(each.result) for each in said].count(True) == 2


def test_a_character_is_sent_whole(serve, euros):
    request = serve(euros).ask(prompt="é€", options='{"max_tokens": 10, "echo": true}')
    assert "".join(request.texts) == "é€" + "é€" * 2
    assert not any("\N{REPLACEMENT CHARACTER}" in text for text in request.texts)


def test_a_chat_goes_through_the_template(serve, tiny_bundle):
    chat = [{"role": "user", "content": "hé"}]
    request = serve(tiny_bundle).ask(messages=json.dumps(chat), options='{"max_tokens": 8}')
    own = own_text(tiny_bundle, chat, max_tokens=8)
    assert json.loads(request.last.result)["tokens"] == own.tokens


def test_an_option_may_come_as_a_parameter_of_the_request(serve):
    given = {"max_tokens": 5, "triton_enable_empty_final_response": True}
    request = serve().ask(prompt="x", parameters=given)
    assert len(json.loads(request.last.result)["tokens"]) == 5


def test_requests_of_a_batch_are_served_in_turn_and_one_that_is_wrong_harms_no_other(serve):
    server = serve()
    texts = ("a", "", "b")
    requests = [server.request(prompt=text, options='{"max_tokens": 4}') for text in texts]
    server.run(*requests)
    assert requests[1].error.code == "invalid"
    for request, text in ((requests[0], "a"), (requests[2], "b")):
        alone = server.ask(prompt=text, options='{"max_tokens": 4}')
        assert alone.texts == request.texts


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({}, "one of prompt and messages, found neither"),
        ({"prompt": "x", "messages": "[]"}, "found both"),
        ({"prompt": ["x", "y"]}, "prompt: expected one value, found 2"),
        ({"prompt": b"\xff"}, "prompt: not UTF-8 at byte 0"),
        ({"messages": "{"}, "messages: not valid JSON"),
        ({"messages": '"hi"'}, "messages: expected a JSON list"),
        ({"messages": "[1, 2]"}, "messages: expected a JSON list of objects"),
        ({"messages": '[{"role": "user"}]'}, "content"),
        ({"prompt": "x", "options": '{"a\\nb": 1}'}, "'a\\nb': no such option"),
        (
            {"prompt": "x", "options": '{"a\\nb": 1}', "parameters": {"a\nb": 1}},
            "'a\\nb': given in options and as a parameter",
        ),
        ({"prompt": "x", "options": "[" * 100_000}, "options: not valid JSON"),
        ({"prompt": "x", "options": "[1]"}, "options: expected a JSON object"),
        ({"prompt": "x", "options": '{"max_token": 1}'}, "did you mean max_tokens"),
        ({"prompt": "x", "options": '{"temperature": -1}'}, "temperature"),
        ({"prompt": "x", "parameters": {"max_token": 1}}, "did you mean max_tokens"),
        (
            {"prompt": "x", "options": '{"seed": 1}', "parameters": {"seed": 1}},
            "'seed': given in options and as a parameter",
        ),
        ({"prompt": "x " * 400}, "256"),
    ],
)
def test_a_bad_request_gets_one_error_that_says_what_to_do(serve, inputs, said):
    server = serve()
    error = server.ask(**inputs).error
    assert error.code == "invalid"
    assert said in error.message
    assert server.ask(prompt="x", options='{"max_tokens": 2}').last.finish_reason == "length"


@pytest.mark.parametrize(("asked", "sent"), [(0, 0), (1, 0), (3, 2)])
def test_a_cancelled_request_ends_at_once_and_frees_the_model(serve, asked, sent):
    server = serve()
    request = server.ask(prompt="hello", options='{"max_tokens": 200}', cancel_at=asked)
    *texts, end = request.sender.sent
    assert len(texts) == sent
    assert end.error.code == "gone"
    assert request.sender.final
    assert server.ask(prompt="x", options='{"max_tokens": 2}').last.finish_reason == "length"


def test_an_error_in_the_middle_follows_what_was_sent(serve, monkeypatch):
    server = serve()
    engine = server.instance._model.target
    forward, calls = engine.forward, []

    def failing(*args):
        calls.append(1)
        if len(calls) == 4:
            raise MemoryError
        return forward(*args)

    monkeypatch.setattr(engine, "forward", failing)
    request = server.ask(prompt="hello", options='{"max_tokens": 50}')
    assert len(request.sender.sent) > 1
    assert request.sender.final
    assert (request.sender.sent[-1].error.code, request.sender.sent[-1].error.message) == (
        "internal",
        "MemoryError",
    )
    assert server.ask(prompt="x", options='{"max_tokens": 2}').last.finish_reason == "length"


def test_a_client_that_cannot_be_reached_is_noted_and_others_are_served(serve):
    server = serve()
    gone, here = server.request(prompt="x", breaks=True), server.request(prompt="x")
    server.run(gone, here)
    assert (gone.sender.sent, here.sender.final) == ([], True)
    (line,) = server.errors
    assert "the pipe is broken" in line


def test_a_canary_works_after_the_final_flag(serve, private_cache):
    server = serve(canary="1", speculation="on", proposers="ngram")
    assert server.ask(prompt="ababab", options='{"max_tokens": 30}').sender.final
    assert server.errors == []
    assert server.instance._model.canary is not None


def test_a_canary_that_breaks_is_noted_where_the_client_has_its_answer(serve, monkeypatch):
    server = serve(canary="1", speculation="on", proposers="ngram")

    def broken(result):
        raise ValueError("the record\nis gone")

    canary = server.instance._model.canary
    monkeypatch.setattr(type(canary), "chosen", lambda *args: broken)
    request = server.ask(prompt="ababab", options='{"max_tokens": 30}')
    assert request.last.finish_reason == "length"
    assert server.errors == ["ValueError: the record is gone"]


# --- loading ------------------------------------------------------------------------------------


def test_parameters_reach_the_load(serve):
    server = serve(context="64", speculation="off", exact="false", EXECUTION_ENV_PATH="/env")
    model = server.instance._model
    assert model.context == 64
    assert not model.speculation.on


def test_a_parameter_that_was_edited_wrongly_keeps_the_model_from_loading(
    tiny_bundle, repository, monkeypatch
):
    model = write_repository(tiny_bundle, repository, parameters=FAKE)
    config = model / "config.pbtxt"
    config.write_text(config.read_text().replace('"engine"', '"engin"'))
    with pytest.raises(TritonModelException, match="no parameter 'engin'"):
        Server(model, monkeypatch)


def test_a_bundle_that_is_gone_keeps_the_model_from_loading(tiny_bundle, repository, monkeypatch):
    model = write_repository(tiny_bundle, repository, parameters=FAKE, link=True)
    tiny_bundle.rename(tiny_bundle.with_name("moved"))
    with pytest.raises(TritonModelException, match="no such folder"):
        Server(model, monkeypatch)


def test_finalize_closes_the_model_and_may_come_after_a_failed_load(serve):
    server = serve()
    server.instance.finalize()
    assert server.ask(prompt="x").error.code == "internal"
    packaged.TritonPythonModel().finalize()


def test_a_real_graph_is_served_as_it_runs_alone(tiny_exports, serve, tmp_path, monkeypatch):
    bundle = tiny_exports.bundle(tiny_exports.checkpoint("llama"), context=64)
    model = write_repository(bundle, tmp_path / "real", parameters={"threads": "1"})
    server = Server(model, monkeypatch)
    request = server.ask(prompt="the cat", options='{"max_tokens": 12, "ignore_eos": true}')
    with specedge.load(bundle, threads=1) as own:
        assert json.loads(request.last.result)["tokens"] == (
            own.generate("the cat", max_tokens=12, ignore_eos=True).tokens
        )
    server.instance.finalize()
