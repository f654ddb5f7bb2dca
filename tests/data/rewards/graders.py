"""Graders that do what graders do in the field: good ones, slow ones and broken ones."""

import os
import subprocess
import sys
import time


def known(prompt, answer, truth, **extra):
    """Do what the row says, else compare."""
    todo = extra.get("todo")
    if todo == "hang":
        while True:
            pass
    if todo == "raise":
        raise ZeroDivisionError("by hand")
    if todo == "die":
        os._exit(3)
    if todo == "exit":
        sys.exit(3)
    if todo == "nan":
        return float("nan")
    if todo == "text":
        return "1.0"
    if todo == "unscored":
        return {"accuracy": 1.0}
    if todo == "none":
        return None
    if todo == "torch":
        return float("torch" in sys.modules or "hexpo" in sys.modules)
    if todo == "pid":
        return {"score": 1.0, "pid": os.getpid()}
    if todo == "child":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        with open(extra["file"], "w") as file:
            file.write(f"{os.getpid()} {child.pid}")
        time.sleep(600)
    return {
        "score": float(answer == truth),
        "length": len(answer),
        "note": "compared",
        **_ragged(extra),
    }


def _ragged(extra):
    return {"bonus": 2.0} if extra.get("todo") == "bonus" else {}


def everything(prompt, answer, truth, answer_tokens, stop, messages, source, id, column="none"):
    """Hand back what came in."""
    return {
        "score": 1.0,
        "answer_tokens": answer_tokens,
        "seen": [prompt, answer, truth, stop, messages, source, id, column],
    }


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    """As verl's reward files write it."""
    good = solution_str == ground_truth and data_source == "openai/gsm8k"
    return {"score": 1.0 if good else 0.0, "index": extra_info["index"]}


def trl_match(completions, solution, **kwargs):
    """As TRL's accuracy rewards write it."""
    contents = [completion[0]["content"] for completion in completions]
    return [float(content == truth) for content, truth in zip(contents, solution, strict=True)]


def trl_lengths(prompts, completions, completion_ids, level, **kwargs):
    """As TRL's length rewards write it; speaks of one level only."""
    return [
        len(ids) if here == 1 else None for ids, here in zip(completion_ids, level, strict=True)
    ]


def trl_plain(prompts, completions, **kwargs):
    """A TRL function of plain texts."""
    return [
        float(completion.startswith(prompt))
        for prompt, completion in zip(prompts, completions, strict=True)
    ]


async def patient(prompt, answer, truth, *, worth):
    """An asynchronous grader with a setting of its own."""
    return worth if answer == truth else 0.0


def strange(text):
    """A signature of no known style."""
    return 1.0
