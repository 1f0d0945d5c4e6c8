"""Generates from a batch of prompts whose caches are compressed while the model's own `generate` reads them.

The question is compressed with the rest of its prompt, so the policy is one that keeps the prompt's end.

python examples/generate_batch.py [model] [policy]
"""

import sys

import cachecraft

NOTES = "The harbour master keeps the tide tables in the red cabinet. The pilot boat leaves at six. "
PROMPTS = (NOTES * 20 + "Where are the tide tables?", NOTES * 12 + "When does the pilot boat leave?")


def main(model: str = "smollm2", policy: str = "snapkv") -> None:
    loaded = cachecraft.load_model(model)
    texts = [
        loaded.tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True
        )
        for prompt in PROMPTS
    ]
    batch = loaded.tokenizer(texts, padding=True, padding_side="left", add_special_tokens=False, return_tensors="pt")
    with cachecraft.compress(loaded.model, policy=policy, ratio=0.5) as compression:
        answers = loaded.model.generate(
            input_ids=batch["input_ids"],
            attention_mask=batch["attention_mask"],
            max_new_tokens=24,
            do_sample=False,
        )
    last = compression.last
    print(f"{last.tokens} tokens read; {last.bytes / 1e6:.1f} of {last.full_bytes / 1e6:.1f} MB kept")
    for answer in answers[:, batch["input_ids"].shape[1] :]:
        print(loaded.tokenizer.decode(answer, skip_special_tokens=True).strip())


if __name__ == "__main__":
    main(*sys.argv[1:])
