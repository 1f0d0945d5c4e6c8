"""Reads a text once, keeps a quarter of its cache, and asks two questions about it.

python examples/compress_and_ask.py [model] [policy]
"""

import sys

import cachecraft

TEXT = "The harbour master keeps the tide tables in the red cabinet. The pilot boat leaves at six. " * 20
QUESTIONS = ("Where are the tide tables?", "When does the pilot boat leave?")


def main(model: str = "smollm2", policy: str = "keydiff") -> None:
    loaded = cachecraft.load_model(model)
    context = cachecraft.prefill(loaded.model, loaded.tokenizer, TEXT, policy=policy, ratio=0.75)
    print(f"{context.tokens} tokens read; {context.bytes / 1e6:.1f} of {context.full_bytes / 1e6:.1f} MB kept")
    for question in QUESTIONS:
        print(f"{question} {context.ask(question, max_new_tokens=24).strip()}")


if __name__ == "__main__":
    main(*sys.argv[1:])
