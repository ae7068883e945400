"""The process that runs inputs: it may hang, run out of memory or die, and says by a file where it was."""

from __future__ import annotations

import faulthandler
import gc
import json
import logging
import os
import resource
import signal
import sys
import time
from typing import Any

SECONDS = 10  # of a processor, per input: a busy machine is no hang
WAIT = 600  # seconds for an input that waits, of a machine that may be busy
MEMORY = 4 << 30
EVERY = 500  # inputs between two collections of garbage


def work() -> None:
    """Reads ``[target, seed, inputs, seconds]`` from each line of stdin; answers as :meth:`Worker.run`."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what is printed must not get among the answers
    place = os.open(sys.argv[2], os.O_RDWR)
    from .running import run, targets

    known = targets()
    logging.disable(logging.CRITICAL)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    faulthandler.register(signal.SIGPROF, all_threads=False, chain=True)  # then the process ends, also in C code
    done, begun = 0, set[str]()
    for line in sys.stdin:
        name, seed, inputs, seconds = json.loads(line)
        if name not in known:
            raise KeyError(name)
        findings: list[Any] = []
        end, used, made = time.monotonic() + seconds, time.process_time(), 0
        while made < inputs and (time.monotonic() < end or not made):
            os.pwrite(place, f"{seed + made:20}".encode(), 0)
            fresh = name not in begun  # the first input of a target may build what all its inputs share
            begun.add(name)
            signal.setitimer(signal.ITIMER_PROF, SECONDS * (6 if fresh else 1))
            faulthandler.dump_traceback_later(WAIT, exit=True)
            if finding := run(name, seed + made):
                findings.append(finding)
            signal.setitimer(signal.ITIMER_PROF, 0)
            faulthandler.cancel_dump_traceback_later()
            made += 1
            done += 1
            if done % EVERY == 0:
                gc.collect()
        print(json.dumps([made, time.process_time() - used, findings]), file=answers, flush=True)
