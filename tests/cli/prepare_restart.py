"""Killed at random moments and started again, prepare leaves the same bytes as an uninterrupted run (T1).

usage: ESSH=./essh tests/cli/prepare_restart.py [--megabytes N] [--kills N]    size of the input (30), kills (20)
"""
import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from _command import ESSH, HANGS, essh

KILLS = 20
megabytes = 30


def write_corpus(folder):
    words = ["".join(random.choices("etaoinshrdlu", k=random.randint(1, 9))) for _ in range(1000)]
    for number in range(3):
        with open(os.path.join(folder, f"{number}.jsonl"), "w", encoding="utf-8") as file:
            while file.tell() < megabytes * 1_000_000 // 3:
                text = " ".join(random.choices(words, k=random.randint(1, 400)))
                file.write(json.dumps({"id": number, "text": text}) + "\n")
                if random.random() < 0.01:
                    file.write("not a line of JSON\n")


def digests(folder):
    """Digests of every file of the dataset."""
    found = {}
    for name in os.listdir(folder):
        if ".tmp-" not in name:
            with open(os.path.join(folder, name), "rb") as file:
                digest = hashlib.sha256()
                while block := file.read(1 << 20):
                    digest.update(block)
                found[name] = digest.hexdigest()
    return found


def size(folder):
    """Bytes of all files in a folder that may be changing."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.path.getsize(os.path.join(place, name))
            except FileNotFoundError:
                pass
    return total


class PrepareRestart(unittest.TestCase):
    def test_killed_runs_leave_the_same_bytes(self):
        random.seed(3)
        with tempfile.TemporaryDirectory() as place:
            corpus = os.path.join(place, "corpus")
            os.mkdir(corpus)
            write_corpus(corpus)

            def command(folder):
                return ["prepare", corpus, "-o", folder, "--tokenizer", "bytes", "--shard-tokens",
                        str(megabytes * 16667), "--valid-fraction", "0.1", "--threads", "1"]

            whole = os.path.join(place, "whole")
            result = essh(*command(whole))
            self.assertEqual(result.returncode, 0, result.stderr)
            expected = digests(whole)
            whole_size = size(whole)
            self.assertGreater(len(expected), 20)

            kills = finished = continued = 0
            while kills < KILLS:
                folder = os.path.join(place, f"killed-{finished}")
                while True:
                    # The moment of a kill is counted in bytes written, then in milliseconds.
                    until = size(folder) + random.uniform(0, 0.4) * whole_size
                    process = subprocess.Popen([ESSH, *command(folder)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
                    while size(folder) <= until and process.poll() is None:
                        time.sleep(0.001)
                    time.sleep(random.uniform(0, 0.01))
                    alive = process.poll() is None
                    if alive and kills < KILLS:
                        process.send_signal(signal.SIGKILL)
                        kills += 1
                    words = process.communicate(timeout=HANGS)[1]
                    continued += b"continuing" in words
                    if process.returncode != -signal.SIGKILL:
                        self.assertEqual(process.returncode, 0, words)
                        break
                finished += 1
                self.assertEqual(digests(folder), expected)
                shutil.rmtree(folder)
            print(f"{megabytes} MB; {kills} kills, {finished} runs to the end, {continued} continued")
            self.assertGreater(continued, KILLS // 6, "hardly any run was continued: the test proves nothing")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=int, default=megabytes)
    parser.add_argument("--kills", type=int, default=KILLS)
    options, rest = parser.parse_known_args()
    megabytes, KILLS = options.megabytes, options.kills
    unittest.main(argv=sys.argv[:1] + rest)
