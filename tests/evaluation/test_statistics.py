"""What the statistics promise: pairing, exact tests, honest intervals, the same answer for the same items."""

import math
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from cachecraft.errors import RunError
from cachecraft.evaluation.corrections import benjamini_hochberg
from cachecraft.evaluation.resampling import tango_interval
from cachecraft.evaluation.statistics import (
    by_task,
    eligible_tasks,
    macro_difference,
    macro_mean,
    mean_interval,
    non_inferior,
    paired_difference,
    recovered,
)

grades = st.floats(0, 1, allow_nan=False)
bits = st.sampled_from([0.0, 1.0])


def keyed(values, prefix="item"):
    return {f"{prefix}{index}": float(value) for index, value in enumerate(values)}


def random_tasks(seed, tasks=("a", "b", "c"), items=40, chance=0.5):
    rng = np.random.default_rng(seed)
    return {task: keyed(rng.random(items) < chance, task) for task in tasks}


class TestMean:
    @given(st.lists(grades, min_size=1, max_size=40))
    def test_the_interval_surrounds_the_mean_and_stays_within_the_scores_range(self, values):
        result = mean_interval(values)
        assert result.estimate == pytest.approx(np.mean(values), abs=1e-12)
        assert -1e-9 <= result.low <= result.high <= 1 + 1e-9
        assert result.n == len(values)

    def test_all_right_answers_still_leave_room_for_doubt(self):
        result = mean_interval([1.0] * 20)
        assert result.high == 1 and 0.8 < result.low < 0.9

    def test_three_hundred_items_give_about_six_points_at_one_half(self):
        result = mean_interval([0.0, 1.0] * 150)
        assert (result.high - result.low) / 2 == pytest.approx(0.056, abs=0.005)

    def test_graded_scores_that_are_all_equal_have_an_interval_without_width(self):
        result = mean_interval([0.5] * 8)
        assert (result.low, result.estimate, result.high) == (0.5, 0.5, 0.5)

    @pytest.mark.parametrize("values", [[], [0.5, math.nan], [math.inf]])
    def test_nothing_and_numbers_that_are_not_finite_are_refused(self, values):
        with pytest.raises(RunError):
            mean_interval(values)


class TestPairedDifference:
    def test_binary_scores_get_the_exact_mcnemar_test(self):
        a = keyed([1] * 12 + [0] * 2 + [1] * 36)
        b = keyed([0] * 12 + [1] * 2 + [1] * 36)
        result = paired_difference(a, b)
        assert result.p == pytest.approx(stats.binomtest(12, 14, 0.5).pvalue)
        assert result.estimate == pytest.approx(0.2)

    @given(st.lists(st.tuples(bits, bits), min_size=1, max_size=60))
    def test_swapping_binary_sides_mirrors_everything(self, pairs):
        a, b = (keyed(side) for side in zip(*pairs, strict=True))
        one, other = paired_difference(a, b), paired_difference(b, a)
        assert one.estimate == -other.estimate
        assert one.p == pytest.approx(other.p)
        assert (one.low, one.high) == pytest.approx((-other.high, -other.low), abs=1e-6)
        assert -1 <= one.low <= one.estimate <= one.high <= 1

    @given(st.lists(st.tuples(grades, grades), min_size=2, max_size=20))
    def test_swapping_graded_sides_mirrors_estimate_and_p(self, pairs):
        a, b = (keyed(side) for side in zip(*pairs, strict=True))
        one, other = paired_difference(a, b), paired_difference(b, a)
        assert one.estimate == pytest.approx(-other.estimate, abs=1e-12)
        assert one.p == pytest.approx(other.p, abs=1e-9)

    def test_no_disagreement_means_p_of_one_and_an_interval_that_is_not_a_point(self):
        same = keyed([1, 0] * 10)
        result = paired_difference(same, same)
        assert result.p == 1
        z = stats.norm.ppf(0.975)
        assert result.high == pytest.approx(z**2 / (20 + z**2), abs=1e-6)  # Tango's closed form for 0 of n
        assert result.low == pytest.approx(-result.high)

    def test_tangos_interval_solves_its_own_score_equation(self):
        low, high = tango_interval(9, 4, 44, 0.95)
        for delta, sign in ((low, 1), (high, -1)):
            # The likelihood at a fixed difference, maximised by brute force over the probability of a loss.
            q = np.linspace(max(0, -delta) + 1e-9, (1 - delta) / 2 - 1e-9, 400_001)
            best = q[np.argmax(9 * np.log(q + delta) + 4 * np.log(q) + 31 * np.log1p(-2 * q - delta))]
            score = (9 - 4 - 44 * delta) / math.sqrt(44 * (2 * best + delta * (1 - delta)))
            assert score == pytest.approx(sign * stats.norm.ppf(0.975), abs=1e-3)

    def test_a_clear_graded_gain_is_found_and_noise_is_not(self):
        rng = np.random.default_rng(3)
        base, noise = rng.random(60) * 0.8, rng.normal(0, 0.05, 60)
        gain = paired_difference(keyed(base + 0.1 + noise), keyed(base))
        none = paired_difference(keyed(base + noise - noise.mean()), keyed(base))
        assert gain.p <= 0.001 and gain.low > 0
        assert none.p > 0.9 and none.low < 0 < none.high
        assert gain.method.startswith("BCa")

    def test_the_permutation_p_agrees_with_the_exact_enumeration(self):
        difference = np.array([0.3, -0.1, 0.25, 0.4, 0.05, 0.2, -0.15, 0.33])
        exact = stats.permutation_test(
            (difference,), np.sum, permutation_type="samples", n_resamples=np.inf, alternative="two-sided"
        )
        ours = paired_difference(keyed(difference), keyed(np.zeros(8)))
        assert ours.p == pytest.approx(exact.pvalue, abs=0.015)

    def test_equal_differences_fall_back_from_bca(self):
        result = paired_difference(keyed([0.75, 0.5, 0.25]), keyed([0.5, 0.25, 0.0]))
        assert (result.low, result.high) == (0.25, 0.25)
        assert result.method.startswith("percentile")

    def test_sides_measured_on_different_items_are_refused(self):
        with pytest.raises(RunError, match="2 items were measured for one side only"):
            paired_difference({"x": 1.0, "y": 0.0}, {"x": 1.0, "z": 0.0})


class TestMacro:
    def test_each_task_counts_alike_however_many_items_it_has(self):
        result = macro_mean({"small": keyed([1, 1]), "large": keyed([0] * 98)})
        assert result.estimate == 0.5 and result.n == 100

    def test_the_order_of_items_and_tasks_changes_nothing(self):
        scores = random_tasks(1)
        shuffled = {task: dict(reversed(scores[task].items())) for task in reversed(scores)}
        assert macro_mean(scores) == macro_mean(shuffled)
        assert macro_difference(scores, random_tasks(2)) == macro_difference(shuffled, random_tasks(2))

    def test_the_interval_agrees_with_the_normal_approximation(self):
        a, b = random_tasks(5, items=200), random_tasks(6, items=200, chance=0.4)
        spread = math.sqrt(sum(np.var([a[t][i] - b[t][i] for i in a[t]]) / 200 for t in a) / len(a) ** 2)
        result = macro_difference(a, b)
        assert (result.high - result.low) / 2 == pytest.approx(1.96 * spread, rel=0.08)

    def test_a_policy_does_not_differ_from_itself(self):
        scores = random_tasks(4)
        result = macro_difference(scores, scores)
        assert (result.estimate, result.p) == (0, 1)
        assert result.low == pytest.approx(-result.high) and 0.01 < result.high < 0.1  # 120 items prove no equality
        graded = {task: {item: 0.5 * value for item, value in own.items()} for task, own in scores.items()}
        result = macro_difference(graded, graded)
        assert (result.estimate, result.low, result.high, result.p) == (0, 0, 0, 1)

    @given(st.integers(0, 50))
    def test_the_difference_of_macro_means_is_the_macro_difference(self, seed):
        a, b = random_tasks(seed, items=7), random_tasks(seed + 1000, items=7)
        gap = macro_mean(a).estimate - macro_mean(b).estimate
        assert macro_difference(a, b).estimate == pytest.approx(gap, abs=1e-12)

    def test_items_of_one_document_are_resampled_together(self):
        rng = np.random.default_rng(0)
        shared = np.repeat(rng.choice([-1.0, 1.0], 20), 10)  # ten items of a document win or lose together
        a, b = {"qa": keyed(shared)}, {"qa": keyed(np.zeros(200))}
        documents = {f"item{index}": f"doc{index // 10}" for index in range(200)}
        alone, together = macro_difference(a, b), macro_difference(a, b, documents)
        assert together.estimate == pytest.approx(alone.estimate)
        ratio = (together.high - together.low) / (alone.high - alone.low)
        assert ratio == pytest.approx(math.sqrt(10), rel=0.25)
        assert together.p > alone.p

    def test_items_without_a_document_stand_for_themselves(self):
        a, b = random_tasks(7), random_tasks(8)
        nowhere = dict.fromkeys((item for task in a.values() for item in task), "")
        assert macro_difference(a, b, nowhere) == macro_difference(a, b)

    def test_clusters_of_unequal_size_keep_the_mean_over_items(self):
        a, b = {"qa": keyed([0.5, 0.5, 0.5, 0])}, {"qa": keyed([0, 0, 0, 0])}
        result = macro_difference(a, b, {"item0": "d", "item1": "d", "item2": "d"})
        assert result.estimate == 0.375 and result.low == 0 and result.high == 0.5

    def test_the_interval_covers_the_truth_about_as_often_as_it_says(self):
        covered = 0
        for seed in range(150):
            a = random_tasks(seed, tasks=("a", "b"), items=50, chance=0.7)
            b = random_tasks(seed + 10_000, tasks=("a", "b"), items=50, chance=0.5)
            result = macro_difference(a, b, seed=seed)
            covered += result.low <= 0.2 <= result.high
        assert 0.89 <= covered / 150 <= 0.99

    def test_a_table_of_forty_policies_at_three_ratios_takes_under_two_seconds(self):
        reference = random_tasks(0, items=60)
        cells = [random_tasks(seed, items=60) for seed in range(120)]
        start = time.process_time()
        for cell in cells:
            macro_difference(cell, reference)
        assert time.process_time() - start < 2

    def test_other_tasks_or_no_tasks_are_refused(self):
        with pytest.raises(RunError):
            macro_difference(random_tasks(0, tasks=("a",)), random_tasks(0, tasks=("b",)))
        with pytest.raises(RunError):
            macro_mean({})

    def test_rows_are_grouped_by_task(self):
        assert by_task({("a", "1"): 0.5, ("b", "1"): 1.0, ("a", "2"): 0.0}) == {
            "a": {"1": 0.5, "2": 0.0},
            "b": {"1": 1.0},
        }


class TestOneTask:
    def test_three_right_answers_of_three_leave_room_for_doubt(self):
        result = macro_mean({"a": keyed([1, 1, 1])})
        assert result == mean_interval([1.0, 1.0, 1.0])
        assert result.high == 1 and 0.4 < result.low < 0.5

    def test_three_wins_of_three_are_not_sure_and_six_are(self):
        three = macro_difference({"a": keyed([1] * 3)}, {"a": keyed([0] * 3)})
        assert three == paired_difference(keyed([1] * 3), keyed([0] * 3))
        assert three.p == pytest.approx(0.25) and not three.sure
        six = macro_difference({"a": keyed([1] * 6)}, {"a": keyed([0] * 6)})
        assert six.p == pytest.approx(2 / 64) and six.sure

    def test_graded_scores_get_bca_with_a_permutation_test(self):
        rng = np.random.default_rng(0)
        a, b = keyed(rng.random(30)), keyed(rng.random(30))
        assert macro_mean({"a": a}).method == "BCa bootstrap"
        assert macro_difference({"a": a}, {"a": b}).method == "BCa bootstrap, paired permutation test"

    def test_an_interval_that_excludes_nought_is_not_sure_without_its_p(self):
        three = macro_difference({"a": keyed([0.6, 0.7, 0.8])}, {"a": keyed([0.1] * 3)})
        assert three.low > 0 and three.p > 0.2 and not three.sure


class TestBinaryMacro:
    def test_answers_all_right_on_all_tasks_leave_room_for_doubt_that_more_tasks_lessen(self):
        lows = [macro_mean({task: keyed([1] * 3) for task in tasks}).low for tasks in ("a", "ab", "abcdef")]
        assert lows == sorted(lows) and lows[0] > 0.4 and lows[-1] < 0.8
        assert macro_mean({"a": keyed([1] * 3), "b": keyed([1] * 3)}).high == 1

    @given(st.lists(st.lists(st.tuples(bits, bits), min_size=1, max_size=12), min_size=1, max_size=4))
    def test_means_and_differences_lie_inside_their_intervals_within_what_is_possible(self, tasks):
        a = {str(number): keyed([x for x, _ in own]) for number, own in enumerate(tasks)}
        b = {str(number): keyed([y for _, y in own]) for number, own in enumerate(tasks)}
        mean, apart = macro_mean(a), macro_difference(a, b)
        assert -1e-9 <= mean.low <= mean.estimate <= mean.high <= 1 + 1e-9
        assert -1 - 1e-9 <= apart.low <= apart.estimate <= apart.high <= 1 + 1e-9
        assert mean.high > mean.low and apart.high > apart.low

    def test_few_items_of_many_tasks_cover_the_truth_about_as_often_as_they_say(self):
        rng, covered = np.random.default_rng(1), 0
        for _ in range(300):
            result = macro_mean({task: keyed(rng.random(4) < 0.9) for task in "abc"})
            covered += result.low <= 0.9 <= result.high
        assert covered / 300 >= 0.93  # a bootstrap's does 7 times of 10

    def test_it_agrees_with_the_normal_approximation_where_there_are_many_items(self):
        scores = random_tasks(3, items=300)
        spread = math.sqrt(sum(np.var(list(own.values())) / 300 for own in scores.values()) / 9)
        result = macro_mean(scores)
        assert (result.high - result.low) / 2 == pytest.approx(1.96 * spread, rel=0.03)


class TestDocuments:
    documents = {f"item{index}": f"doc{index // 10}" for index in range(200)}

    def test_a_mean_over_few_documents_is_less_certain_than_over_as_many_items(self):
        rng = np.random.default_rng(0)
        for values in (np.repeat(rng.random(20), 10), np.repeat(rng.random(20) < 0.5, 10)):  # graded, binary
            alone, together = macro_mean({"qa": keyed(values)}), macro_mean({"qa": keyed(values)}, self.documents)
            assert together.estimate == pytest.approx(alone.estimate)
            ratio = (together.high - together.low) / (alone.high - alone.low)
            assert ratio == pytest.approx(math.sqrt(10), rel=0.25)

    def test_documents_that_are_all_right_count_once_each(self):
        right = {"qa": keyed([1] * 200)}
        assert macro_mean(right, self.documents).low == pytest.approx(mean_interval([1.0] * 20).low)
        wins = macro_difference(right, {"qa": keyed([0] * 200)}, self.documents)
        assert wins.low == pytest.approx(paired_difference(keyed([1] * 20), keyed([0] * 20)).low, abs=1e-6)

    @pytest.mark.parametrize("scale", [1.0, 0.5])  # binary and graded
    def test_a_sample_at_three_lengths_is_no_three_samples(self, scale):
        rng = np.random.default_rng(2)
        values = scale * (rng.random(60) < 0.6)
        lengths = {f"gsm8k at {length}": keyed(values, f"{length} ") for length in (512, 1024, 2048)}
        nought = {task: dict.fromkeys(own, 0.0) for task, own in lengths.items()}
        same = {item: item.split()[-1] for own in lengths.values() for item in own}
        one = macro_mean({"gsm8k": keyed(values)})
        three, wrong = macro_mean(lengths, same), macro_mean(lengths)
        assert three.high - three.low == pytest.approx(one.high - one.low, rel=0.1)
        assert wrong.high - wrong.low < 0.7 * (one.high - one.low)
        one = macro_difference({"gsm8k": keyed(values)}, {"gsm8k": keyed(0 * values)})
        three = macro_difference(lengths, nought, same)
        assert three.high - three.low == pytest.approx(one.high - one.low, rel=0.1)

    def test_the_p_of_a_sample_at_three_lengths_is_that_of_the_sample(self):
        values, nought = [0.5] * 5, [0.0] * 5
        a = {f"t at {n}": keyed(values, f"{n} ") for n in (1, 2, 3)}
        b = {f"t at {n}": keyed(nought, f"{n} ") for n in (1, 2, 3)}
        same = {item: item.split()[-1] for own in a.values() for item in own}
        assert macro_difference(a, b, same).p == paired_difference(keyed(values), keyed(nought)).p > 0.05
        assert macro_difference(a, b).p < 0.001

    def test_lengths_that_hold_some_of_the_samples_only_are_averaged_all_the_same(self):
        a = {"t at 1": keyed([0.5, 0.3], "1 "), "t at 2": keyed([0.5], "2 ")}
        result = macro_mean(a, {item: item.split()[-1] for own in a.values() for item in own})
        assert result.estimate == pytest.approx(0.45) and result.low <= 0.45 <= result.high


class TestManyComparisons:
    @given(st.lists(st.floats(0, 1), max_size=30))
    def test_adjusted_values_are_no_smaller_and_keep_the_order(self, pvalues):
        adjusted = benjamini_hochberg(pvalues)
        assert all(new >= old - 1e-12 and new <= 1 for new, old in zip(adjusted, pvalues, strict=True))
        ranked = [adjusted[index] for index in np.argsort(pvalues, kind="stable")]
        assert ranked == sorted(ranked)

    def test_a_known_example(self):
        assert benjamini_hochberg([0.01, 0.04, 0.03, 0.5]) == pytest.approx([0.04, 0.16 / 3, 0.16 / 3, 0.5])

    def test_a_value_that_is_no_probability_is_refused(self):
        with pytest.raises(RunError):
            benjamini_hochberg([0.5, math.nan])


class TestRecovered:
    full = {"easy": 0.9, "hard": 0.3, "edge": 0.7}
    floor = {"easy": 0.1, "hard": 0.2, "edge": 0.5}

    def test_only_tasks_with_a_gap_of_a_fifth_are_eligible(self):
        assert eligible_tasks(self.full, self.floor) == ("easy", "edge")

    @given(st.floats(-0.5, 1.5))
    def test_it_is_linear_from_random_at_nought_to_full_at_one(self, share):
        between = {task: self.floor[task] + share * (self.full[task] - self.floor[task]) for task in self.full}
        eligible = eligible_tasks(self.full, self.floor)
        assert recovered(between, self.floor, self.full, eligible) == pytest.approx(share, abs=1e-9)

    def test_without_an_eligible_task_there_is_nothing_to_say(self):
        assert recovered(self.full, self.floor, self.full, ()) is None

    def test_a_full_cache_no_better_than_random_on_these_items_says_nothing(self):
        assert recovered(self.full, self.floor, self.floor, ("easy",)) is None

    def test_a_missing_task_is_refused_by_name(self):
        with pytest.raises(RunError, match=r"easy is eligible but the policy"):
            recovered({"edge": 0.5}, self.floor, self.full, ("easy", "edge"))


class TestNonInferiority:
    def test_a_handful_of_equal_scores_proves_nothing(self):
        few = {"a": keyed([1] * 5)}
        assert not non_inferior(few, few, 0.05).accepted

    def test_many_equal_scores_do(self):
        many = {"a": keyed([1] * 100)}
        result = non_inferior(many, many, 0.05)
        assert result.accepted and result.low == pytest.approx(-(1 - 0.05**0.01))

    def test_a_real_loss_is_not_lossless(self):
        full = {"a": keyed([1] * 100)}
        assert not non_inferior({"a": keyed([1] * 85 + [0] * 15)}, full, 0.05).accepted

    def test_a_wider_margin_never_turns_yes_into_no(self):
        full, policy = {"a": keyed([1] * 100)}, {"a": keyed([1] * 96 + [0] * 4)}
        verdicts = [non_inferior(policy, full, margin).accepted for margin in (0.01, 0.05, 0.1, 0.3)]
        assert verdicts == sorted(verdicts) and verdicts[-1] and not verdicts[0]

    def test_a_margin_of_nought_is_refused(self):
        with pytest.raises(RunError, match="margin"):
            non_inferior(random_tasks(0), random_tasks(0), 0.0)


def test_tasks_of_one_item_each_have_an_interval_and_not_a_point() -> None:
    scores = {f"t{i}": {f"i{i}": value} for i, value in enumerate((-0.1, -0.4, -0.2, -0.9))}
    found = macro_mean(scores)
    assert found.low < -0.4 - 0.05 and found.high > -0.4 + 0.05
    assert macro_difference(scores, {task: dict.fromkeys(own, 0.0) for task, own in scores.items()}).low < -0.45
