"""Calling the binary under test, and a model for it, for the programs of this folder."""
import json
import os
import pathlib
import resource
import subprocess

ESSH = os.environ["ESSH"]

# Exit codes of docs/cli.md
EXIT_USAGE = 2
EXIT_BAD_FILE = 3
EXIT_UNSUPPORTED = 4

# Seconds until a process counts as hanging: far more than any needs, so that a busy machine cannot fail a test.
HANGS = 1800


def processor_seconds():
    """Processor time of all processes that this one has waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def essh(*arguments, stdin=b"", cwd=None, timeout=HANGS):
    """Runs essh and returns the finished process; its stdout and stderr are bytes, not terminals."""
    return subprocess.run([ESSH, *map(str, arguments)], input=stdin, capture_output=True, cwd=cwd, timeout=timeout,
                          check=False)


def essh_json(*arguments, **options):
    """The JSON printed by a command; a failure of the command is an AssertionError."""
    result = essh(*arguments, **options)
    if result.returncode != 0:
        raise AssertionError(f"essh {' '.join(map(str, arguments))} ended with {result.returncode}: "
                             f"{result.stderr.decode(errors='replace')}")
    return json.loads(result.stdout)


def byte_model(model, seed=3):
    """Makes the folder of an untrained tiny family whose tokens are bytes; its tokenizer.json also lies beside it."""
    model = pathlib.Path(model)
    tokenizer = model.parent / "tokenizer.json"
    commands = [("init", "tiny", "-o", model, "--seed", seed, "--vocab-size", 257, "--tokenizer", tokenizer)]
    if not tokenizer.exists():
        commands.insert(0, ("tokenizer", "convert", "--tokenizer", "bytes", "-o", tokenizer))
    for command in commands:
        made = essh(*command)
        if made.returncode != 0:
            raise AssertionError(made.stderr.decode(errors="replace"))
    return model
