"""Plots are written in every format asked for, and hold what they should."""

from pathlib import Path

from tests.reporting.test_summary import grid, result

from cachecraft.reporting.plots import plot_score_against_bytes
from cachecraft.reporting.report.charts import score_chart
from cachecraft.reporting.summary import summarise


def test_a_plot_is_written_as_png_and_svg_with_a_name_for_every_line(tmp_path: Path) -> None:
    paths = [tmp_path / "deep" / f"plot.{ending}" for ending in ("png", "svg")]
    plot_score_against_bytes([summarise(grid(), "answer")] * 2, paths, titles=["1k", "2k"])
    assert paths[0].read_bytes().startswith(b"\x89PNG")
    assert "<svg" in paths[1].read_text()


def test_a_legend_shows_a_name_that_begins_with_an_underscore() -> None:
    summary = summarise([*grid(), *(result("_mine", "0.75", item, 1.0) for item in range(8))], "answer")
    assert "_mine</text>" in score_chart(summary, name="x")
