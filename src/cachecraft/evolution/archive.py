"""The quality-diversity archive: the best candidate of each cell of each island, as a pure function of the candidates.

Because it is computed and never updated, it does not depend on the order in which results came in, a resumed run has
the archive that it had, a candidate that lost its cell to luck comes back when that luck is found out, and the best is
never lost: nobody can push it out of a cell without being better.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cachecraft.evolution.records import Candidate

BEST, ELITE = 0.3, 0.4  # shares of parents that are the island's best, and that are drawn evenly from its elites
RANK_OFFSET = 4  # the others are drawn with weight 1 / (rank + this): good ones often, none never


@dataclass(frozen=True)
class Archive:
    """Who stands where.

    Attributes:
        elites: For each (island, cell) the candidate with the highest standing, the earlier of equals.
        ranking: For each island its candidates, best first.
        standing: Mean fitness less one standard error, by number.
        spread: The median over candidates of their spread over items, used for every standing.
    """

    elites: Mapping[tuple[int, int], Candidate]
    ranking: Mapping[int, tuple[Candidate, ...]]
    standing: Mapping[int, float]
    spread: float

    @property
    def best(self) -> Candidate | None:
        """The candidate of the highest standing on all islands."""
        leaders = [ranked[0] for ranked in self.ranking.values() if ranked]
        return min(leaders, key=self._place) if leaders else None

    @property
    def middle(self) -> float | None:
        """Median fitness of the elites: what a candidate without parents is compared with."""
        means = [each.fitness.mean for each in self.elites.values() if each.fitness is not None]
        return statistics.median(means) if means else None

    def _place(self, candidate: Candidate) -> tuple[float, int]:
        return -self.standing[candidate.number], candidate.number

    def island(self, island: int) -> list[Candidate]:
        """The elites of an island, in the order of cells."""
        return [each for (own, _), each in sorted(self.elites.items(), key=lambda pair: pair[0]) if own == island]

    def pick(
        self, draw: random.Random, island: int, *, other_than: Candidate | None = None, evenly: bool = False
    ) -> Candidate | None:
        """Draw a parent: the island's best, one of its elites evenly, or any of its candidates by rank.

        Args:
            draw: Where chance comes from.
            island: The island.
            other_than: A candidate that must not be drawn.
            evenly: Draw from the elites only, each as likely as another, so that no line of descent rules.

        Returns:
            The parent, or None where there is none.
        """
        ranked = [each for each in self.ranking.get(island, ()) if each != other_than]
        if not ranked:
            return None
        lot = BEST if evenly else draw.random()
        if lot < BEST:
            return ranked[0]
        elites = [each for each in self.island(island) if each != other_than]
        if lot < BEST + ELITE and elites:
            return draw.choice(elites)
        return draw.choices(ranked, weights=[1 / (rank + RANK_OFFSET) for rank in range(len(ranked))])[0]

    def due(self, count: int, limit: int) -> list[Candidate]:
        """Who should be scored again on fresh items, so that luck does not rule.

        Elites and those whose mean is above that of their cell's elite, which only the doubt about few items keeps
        down; the best first, then those with the fewest items.

        Args:
            count: How many at most.
            limit: Candidates with this many items are known well enough.
        """
        found: dict[int, Candidate] = {}
        for (island, cell), elite in self.elites.items():
            found[elite.number] = elite
            assert elite.fitness is not None
            for each in self.ranking[island]:
                same = each.behaviour is not None and each.behaviour.cell == cell
                if same and each.fitness is not None and each.fitness.mean > elite.fitness.mean:
                    found[each.number] = each
        waiting = [each for each in found.values() if each.fitness is not None and each.fitness.items < limit]
        best = self.best
        waiting.sort(key=lambda each: (each != best, each.fitness.items if each.fitness else 0, self._place(each)))
        return waiting[:count]


def build_archive(candidates: Iterable[Candidate], guests: Iterable[tuple[int, int]] = ()) -> Archive:
    """Sort candidates into the archive.

    Args:
        candidates: Any; those that are not ok do not count.
        guests: (number, island) of candidates that also live on an island that is not their own.
    """
    good = {each.number: each for each in candidates if each.state == "ok" and each.fitness and each.behaviour}
    spread = statistics.median(each.fitness.spread for each in good.values() if each.fitness) if good else 0.0
    standing = {number: each.fitness.standing(spread) for number, each in good.items() if each.fitness}
    homes = {(number, each.island) for number, each in good.items()}
    homes |= {(number, island) for number, island in guests if number in good}
    ordered = sorted(homes, key=lambda home: (-standing[home[0]], home[0], home[1]))
    elites: dict[tuple[int, int], Candidate] = {}
    ranking: dict[int, list[Candidate]] = {}
    for number, island in ordered:
        each = good[number]
        assert each.behaviour is not None
        elites.setdefault((island, each.behaviour.cell), each)
        ranking.setdefault(island, []).append(each)
    return Archive(elites, {island: tuple(ranked) for island, ranked in ranking.items()}, standing, spread)
