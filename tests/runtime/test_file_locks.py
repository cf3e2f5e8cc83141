"""Asking whether a file is locked takes no lock."""

import subprocess
import sys
import threading

import pytest
from filelock import FileLock

from ampcompare.runtime.file_locks import is_locked

HOLDS = """
import sys
from filelock import FileLock
with FileLock(sys.argv[1]):
    print(flush=True)
    sys.stdin.read()
"""


def test_a_lock_of_another_process_is_seen_and_one_that_was_released_is_not(tmp_path):
    file = tmp_path / "lock"
    assert not is_locked(file)
    assert not file.exists()
    command = [sys.executable, "-c", HOLDS, str(file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        assert is_locked(file)
        process.stdin.close()
    assert not is_locked(file)
    file.touch()  # filelock may remove it
    assert not is_locked(file)


@pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux says whether a file is locked without locking it"
)
def test_a_program_that_needs_the_lock_gets_it_while_others_ask(tmp_path):
    file, is_over = tmp_path / "lock", threading.Event()
    file.touch()

    def ask() -> None:
        while not is_over.is_set():
            is_locked(file)

    askers = [threading.Thread(target=ask) for _ in range(2)]
    for asker in askers:
        asker.start()
    try:
        for _ in range(300):
            with FileLock(file, blocking=False):  # raises Timeout where it is refused
                pass
            file.touch()
    finally:
        is_over.set()
        for asker in askers:
            asker.join()
