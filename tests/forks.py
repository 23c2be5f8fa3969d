"""Commands in forks of this process, which has imported their libraries: a fresh process takes seconds for that.

A command with an environment of its own needs a fresh process: libraries read theirs when they are imported.
"""

import atexit
import os
import sys
from multiprocessing import get_context
from subprocess import CompletedProcess
from tempfile import TemporaryFile


def _run(function, folder, output, errors):
    os.chdir(folder)
    for number, stream in ((1, output), (2, errors)):
        os.dup2(stream.fileno(), number)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2))
    sys.exit(function())


def start(function, folder, output, errors):
    """The process of a function that works in a folder, and writes to open files; its exit code is what it returns."""
    process = get_context("fork").Process(target=_run, args=(function, folder, output, errors))
    process.start()
    atexit.register(process.kill)  # else a test that failed meanwhile would keep the whole run waiting
    return process


def run(function, folder):
    """What a function says in a process of its own, and the code that it returns or exits by."""
    with TemporaryFile("w+") as output, TemporaryFile("w+") as errors:
        process = start(function, folder, output, errors)
        process.join()
        said = [stream.seek(0) or stream.read() for stream in (output, errors)]
    return CompletedProcess(function, process.exitcode, *said)
