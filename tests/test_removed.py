"""What went in 0.5 is refused by name, with what to do instead."""

import pytest
from support.refusals import line_of

from ampcompare.cli import main
from ampcompare.config.load import config_from_cli
from ampcompare.config.removed import COMMAND_OPTIONS, RUN_OPTIONS


@pytest.mark.parametrize(("command", "option"), COMMAND_OPTIONS)
def test_an_option_of_a_command_that_went_is_refused_with_what_to_do_instead(
    command: str, option: str, capsys
):
    with pytest.raises(SystemExit) as ended:
        main([*command.split()[1:], "a", option])
    assert ended.value.code == 2
    line = f"error: {command} {option} went in 0.5; {COMMAND_OPTIONS[command, option]}\n"
    assert capsys.readouterr().err == line


@pytest.mark.parametrize("key", RUN_OPTIONS)
def test_an_option_of_a_run_that_went_is_refused_with_what_to_do_instead(key: str):
    assert line_of(lambda: config_from_cli([f"{key}=1"])) == f"{key} went in 0.5; {RUN_OPTIONS[key]}"
