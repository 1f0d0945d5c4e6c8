"""The search that `craft` comes from, and a harsher one: seeds and settings, to run again or to change.

python examples/discover_craft.py [first|second] [minutes] [run] [threads]

The first search is of ratios 0.75 and 0.88; the second has another seed and asks for harsher eviction as well. No item
of the test split is read.
"""

import sys

import cachecraft

TASKS = tuple(f"ruler:niah_{name}" for name in ("single_1", "single_2", "single_3", "multikey_1", "multivalue"))
COMMON = {"tasks": TASKS, "length": 1024, "items": 3, "without": ("craft",)}
SEARCHES = {
    "first": cachecraft.DiscoverySettings(ratios=(0.75, 0.88), seed=1, **COMMON),
    "second": cachecraft.DiscoverySettings(ratios=(0.75, 0.88, 0.95), seed=2, **COMMON),
}


def main(which: str = "first", minutes: str = "60", run: str = "", threads: str = "2", model: str = "smollm2") -> None:
    found = cachecraft.discover(
        [cachecraft.load_model(model, threads=int(threads))],
        settings=SEARCHES[which],
        budget=cachecraft.SearchBudget(seconds=60 * float(minutes)),
        run=run or f"runs/craft-{which}",
        diagnosis=False,  # these searches kept the interface that they began with
        test_samples=0,
    )
    print(f"{found.files[0]} recovers {found.best.fitness.mean:.3f}; the best known policy was {found.baseline}")


if __name__ == "__main__":
    main(*sys.argv[1:])
