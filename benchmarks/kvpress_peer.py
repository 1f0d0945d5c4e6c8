"""The peer's side of vs_kvpress.py: runs cells through kvpress in the peer's own environment.

Reads one JSON request a line from standard input and answers each with one line, so that the model is loaded once and
both sides can take turns. It imports nothing of CacheCraft. Requests:

* ``{"do": "open", "model": FOLDER, "samples": FILE, "threads": N}`` loads the model (float32) and the samples;
* ``{"do": "cell", "press": NAME, "ratio": R, "sample": I, "record": FILE or null, "blend": B or null, "noise": FILE or
  null}`` compresses one sample's context and answers its question greedily. With a file to record to, the kept entries
  and their scores are written there (and the time means nothing); `blend` and `noise` are kvpress_presses.py's.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from kvpress import KVPressTextGenerationPipeline
from kvpress_presses import NEEDS_EAGER, Recorder, drawing, make_press
from transformers import AutoModelForCausalLM, AutoTokenizer, logging


class ListeningTokenizer:
    """The tokenizer, noting the token ids that the pipeline asks it to decode."""

    def __init__(self, tokenizer: Any) -> None:
        """Wrap a tokenizer."""
        self._tokenizer = tokenizer
        self.ids: list[int] = []

    def decode(self, ids: torch.Tensor, **settings: Any) -> str:
        """Decode, and remember what."""
        self.ids = [int(token) for token in ids]
        return str(self._tokenizer.decode(ids, **settings))

    def __getattr__(self, name: str) -> Any:
        """Everything else is the tokenizer's."""
        return getattr(self._tokenizer, name)


class Peer:
    """A loaded model with the samples to run on it."""

    def __init__(self, model: str, samples: str, threads: int) -> None:
        """Load both; the timing starts only afterwards."""
        torch.set_num_threads(threads)
        self.tokenizer = ListeningTokenizer(AutoTokenizer.from_pretrained(model, local_files_only=True))
        self.model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, local_files_only=True).eval()
        self.samples = json.loads(Path(samples).read_text())
        self.pipeline = KVPressTextGenerationPipeline(model=self.model, tokenizer=self.tokenizer._tokenizer)
        self.pipeline.tokenizer = self.tokenizer
        self.stock = self.model.config._attn_implementation
        with torch.no_grad():
            self.model(torch.tensor([self.samples[0]["context_ids"][:64]]))  # warm up

    def cell(
        self, press: str, ratio: float, sample: int, record: str | None, blend: float | None, noise: str | None
    ) -> dict[str, Any]:
        """Run one cell: prefill, compress, answer."""
        chosen = self.samples[sample]
        made = make_press(press, ratio, blend)
        recorder = Recorder(made) if record is not None else None
        self.model.set_attn_implementation("eager" if any(name in press for name in NEEDS_EAGER) else self.stock)
        inputs = {
            "context_ids": torch.tensor([chosen["context_ids"]]),
            "questions_ids": [torch.tensor([chosen["follow_ids"]])],
        }
        wall, cpu = time.perf_counter(), time.process_time()
        with torch.no_grad(), drawing(np.load(noise) if noise is not None else None):
            (answer,) = self.pipeline._forward(inputs, max_new_tokens=chosen["max_new_tokens"], press=made)
        seconds, cpu_seconds = time.perf_counter() - wall, time.process_time() - cpu
        if recorder is not None:
            np.savez(record, **recorder.arrays())
        return {"seconds": seconds, "cpu_seconds": cpu_seconds, "ids": self.tokenizer.ids, "answer": answer}


def main() -> None:
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    sys.stdout = sys.stderr  # nothing that a library prints may get between the replies
    warnings.simplefilter("ignore")
    logging.disable_progress_bar()
    peer: Peer | None = None
    for line in sys.stdin:
        request = json.loads(line)
        reply: dict[str, Any] = {}
        if request["do"] == "open":
            peer = Peer(request["model"], request["samples"], request["threads"])
        elif peer is not None:
            reply = peer.cell(**{key: value for key, value in request.items() if key != "do"})
        replies.write(json.dumps(reply) + "\n")


if __name__ == "__main__":
    main()
