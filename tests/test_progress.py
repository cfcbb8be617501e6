"""The progress display: on a terminal a bar, elsewhere only the lines that stay."""

import io
import sys

import pytest

from spcp import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Not a fixture: pytest changes sys.stderr between setting up and calling."""
    pytest.importorskip("rich")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(sys, "stderr", stderr := Terminal())
    return stderr


def test_a_terminal_shows_the_bar_its_details_and_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = terminal(monkeypatch)
    with progress.progress_bar("epoch 1/2", 10) as bar:
        assert bar.width == 100
        bar.print("epoch [1] done")
        bar.update(10, "epoch 2/2", "loss 0.5")
    assert "epoch [1] done\n" in stderr.getvalue()
    for text in ("epoch 2/2", "100%", "loss 0.5"):
        assert text in stderr.getvalue()


def test_bytes_and_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = terminal(monkeypatch)
    with progress.progress_bar("x.tar", 2000, in_bytes=True) as bar:
        bar.update(2000)
    assert "2.0/2.0 kB" in stderr.getvalue()
    assert list(progress.track("abc", "reading", 3)) == ["a", "b", "c"]
    assert "reading" in stderr.getvalue()


@pytest.mark.parametrize("show", [True, False])
def test_quiet_and_show_hide_it(show: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = terminal(monkeypatch)
    monkeypatch.setattr(progress, "quiet", show)
    with progress.progress_bar("hidden", 1, show=show) as bar:
        bar.update(1)
        assert bar.width == 0
    assert stderr.getvalue() == ""


def test_without_a_terminal_only_lines_are_written(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with progress.progress_bar("work", 1) as bar:
        bar.update(1, details="more")
        bar.print("a line")
        monkeypatch.setattr(progress, "quiet", True)
        bar.print("another")
    assert capsys.readouterr() == ("", "a line\n")


def test_a_table_is_renewed_below_lines_that_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = terminal(monkeypatch)
    with progress.live_table(("run", "left")) as table:
        assert table.shown
        table.update([("seed-[0]", "0:12")], "1 running")
        table.print("seed-\x1b[2J: done")
        table.update([], "1 done")
    for text in ("run", "seed-[0]", "0:12", "1 running", "seed-\\x1b[2J: done\n", "1 done"):
        assert text in stderr.getvalue()


def test_without_a_terminal_there_is_no_table(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.live_table(("run",)) as table:
        assert not table.shown
        table.update([("seed-0",)], "1 running")
        table.print("seed-0: done")
    assert capsys.readouterr().err == "seed-0: done\n"
