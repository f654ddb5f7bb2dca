"""Imports hexpo once, then forks a process for each command that it reads: a test's command has a
process, a session and a state of its own, and costs no import.

Requests and answers are lines of JSON: `run` gives the new process's id, `poll` its exit code or
null. A new process ends as Python ends one: by `main`'s exit code, or an uncaught error.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import peft  # noqa: F401  imported once for all
import safetensors.torch  # noqa: F401
import torch  # noqa: F401
import transformers.models.llama.modeling_llama  # noqa: F401

from hexpo.adapters.models import decode  # noqa: F401
from hexpo.adapters.rollout import embedded  # noqa: F401
from hexpo.adapters.training import fsdp  # noqa: F401
from hexpo.entrypoints import library  # noqa: F401
from hexpo.entrypoints.cli import answers, training  # noqa: F401
from hexpo.entrypoints.cli.main import main


def serve() -> dict[str, Any] | None:
    """Answer requests; returns None at their end, and in a new process what it has to run."""
    for line in sys.stdin:
        request = json.loads(line)
        if "poll" in request:
            done, status = os.waitpid(request["poll"], os.WNOHANG)
            answer = {"code": os.waitstatus_to_exitcode(status) if done else None}
        else:
            process = os.fork()
            if process == 0:
                return dict(request)
            answer = {"pid": process}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    return None


def become(request: dict[str, Any]) -> None:
    """Be the process of a command: its own session, folder and files."""
    os.setsid()
    os.chdir(request["folder"])
    for number, name in ((1, "out"), (2, "err")):
        file = os.open(request[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, number)
        os.close(file)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.path.insert(0, request["folder"])  # a user's modules, as PYTHONPATH would find them
    main(request["run"])


if __name__ == "__main__":
    asked = serve()
    if asked is not None:
        become(asked)
