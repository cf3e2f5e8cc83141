"""The command that a report proposes has the user's options and what is missing, and never the step."""

import shlex

import pytest


@pytest.fixture
def proposed(tmp_path, monkeypatch, command):
    """Run `ampcompare report` of logs with these columns; return the command that it proposes."""
    monkeypatch.chdir(tmp_path)

    def ask(columns: str, *words: str) -> list[str]:
        names = columns.split(",")
        for run in ("a", "b", "fp32", "bf16"):
            path = tmp_path / "logs" / run / "log.csv"
            path.parent.mkdir(parents=True)
            rows = [(epoch, 100 * epoch, 3 - epoch / 10, 7 * epoch) for epoch in (1, 2, 3)]
            lines = [",".join(map(str, row[: len(names)])) for row in rows]
            path.write_text("\n".join([columns, *lines]))
        code, _, err = command("report", *words)
        assert code == 2
        return shlex.split(err.splitlines()[-1].strip().removeprefix("for example: "))[2:]

    return ask


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (
            "--margin 1 fp32=logs/a bf16=logs/b --best",
            "fp32=logs/a bf16=logs/b --best --margin 1.0 --metric val_acc:max",
        ),
        (
            "bf16=logs/b --out mine fp32=logs/a --margin=1 --baseline fp32",
            "bf16=logs/b fp32=logs/a --baseline fp32 --margin 1.0 --out mine --metric val_acc:max",
        ),
        (  # Of an option that stands twice the last counts.
            "--metric other fp32=logs/a --format md bf16=logs/b",
            "fp32=logs/a bf16=logs/b --format md --metric other:max",
        ),
        ("logs/fp32 logs/bf16", "fp32=logs/fp32 bf16=logs/bf16 --metric val_acc:max"),
    ],
)
def test_the_users_options_come_first(proposed, typed: str, expected: str):
    assert " ".join(proposed("step,other,val_acc,train_loss", *typed.split())) == expected
