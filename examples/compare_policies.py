"""Measures two policies and one of your own on a RULER task, and prints their scores.

python examples/compare_policies.py [samples]
"""

import sys
from pathlib import Path

import cachecraft


def main(samples: int = 4, run: str = "runs/compare") -> None:
    evaluation = cachecraft.evaluate(
        "smollm2",
        policies=["keydiff", "vnorm", str(Path(__file__).with_name("my_policy.py"))],
        ratios=[0.75],
        tasks=["ruler:niah_single_1"],
        samples=samples,
        scoring=["likelihood"],
        run=run,
    )
    for row in evaluation.summary(against="random").rows:
        for budget, cell in row.cells.items():
            if cell.score is not None:
                print(f"{row.label:<12} {budget:>5} {cell.score.estimate:7.3f} nats, {100 * cell.kept:.0f} % kept")


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
