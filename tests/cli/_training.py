"""A run small enough for tests of whole commands."""
import hashlib
import os
import random

from _command import essh

RECIPE = [argument for setting in (
    "data.context=32", "model.hidden_size=32", "model.intermediate_size=96", "model.num_hidden_layers=2",
    "model.attention_layers=[1]", "model.sliding_window=16", "run.steps=40", "run.batch=8", "run.micro_batch=2",
    "elastic.warmup_tokens=600", "elastic.ordering_period=5", "run.validation_windows=4", "run.validate_every=20",
    "run.checkpoint_every=3") for argument in ("--set", setting)]


def make_data(place):
    """A folder of tokens, made in `place`."""
    generator = random.Random(1)
    text = os.path.join(place, "text.jsonl")
    with open(text, "w", encoding="utf-8") as file:
        for _ in range(200):
            file.write('{"text": "' + " ".join(f"word{generator.randrange(12)}" for _ in range(60)) + '"}\n')
    data = os.path.join(place, "data")
    result = essh("prepare", text, "-o", data, "--tokenizer", "bytes", "--valid-fraction", "0.2")
    if result.returncode != 0:
        raise AssertionError(result.stderr.decode(errors="replace"))
    return data


def weights(run):
    """A hash of the final weights of a run."""
    with open(os.path.join(run, "pretrained", "model.safetensors"), "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()
