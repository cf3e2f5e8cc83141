"""A sweep's workers on a real PostgreSQL, which is restarted and goes away, too."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from support.quick import HANG
from support.wandb_server.clients import wait_until

from sweeps.conftest import is_alive


def last_count(said: str) -> str:
    return re.findall(r"\d+ of \d+ done", said)[-1]


@pytest.mark.rest
def test_a_killed_worker_and_two_restarts_lose_no_run_and_repeat_none(place, postgres):
    points = list(range(40))
    place.file(parameters={"x": {"values": points}, "hold": {"value": "all"}})
    place.hold()
    url = postgres.database()
    outs = [place.folder / f"w{i}" for i in range(4)]
    workers = [place.start("--storage", url, "--grace", "10", out=out) for out in outs]
    for out in outs:
        place.wait_for("began", 1, out)
    (event,) = place.events("began", outs[0])
    workers[0].kill()
    wait_until(lambda: not is_alive(event["pid"]), "the end of the killed worker's run")
    workers[0].communicate()
    postgres.restart("immediate")
    place.release()
    wait_until(lambda: sum(len(place.events("ended", out)) for out in outs) >= 20, "half of the runs")
    postgres.restart("fast")
    said = [worker.communicate(timeout=HANG)[0] for worker in workers[1:]]
    assert [worker.returncode for worker in workers[1:]] == [0, 0, 0], said
    ended = [event for out in outs for event in place.events("ended", out)]
    assert sorted(int(event["given"]["x"]) for event in ended) == points
    began = Counter(event["run"] for out in outs for event in place.events("began", out))
    assert [run for run, times in began.items() if times > 1] == [event["run"]]
    assert [last_count(text) for text in said] == ["40 of 40 done"] * 3
