"""Killed at random moments and started again, prepare leaves the same bytes as an uninterrupted run."""
import json
import os
import random
import signal
import subprocess
import tempfile
import time
import unittest

from _command import ESSH, essh
from _shards import file_bytes

KILLS = 20


def write_corpus(folder):
    words = ["".join(random.choices("etaoinshrdlu", k=random.randint(1, 9))) for _ in range(1000)]
    for number in range(3):
        with open(os.path.join(folder, f"{number}.jsonl"), "w", encoding="utf-8") as file:
            while file.tell() < 5_000_000:
                text = " ".join(random.choices(words, k=random.randint(1, 400)))
                file.write(json.dumps({"id": number, "text": text}) + "\n")
                if random.random() < 0.01:
                    file.write("not a line of JSON\n")


class PrepareRestart(unittest.TestCase):
    def test_killed_runs_leave_the_same_bytes(self):
        random.seed(3)
        with tempfile.TemporaryDirectory() as place:
            corpus = os.path.join(place, "corpus")
            os.mkdir(corpus)
            write_corpus(corpus)

            def command(folder):
                return ["prepare", corpus, "-o", folder, "--tokenizer", "bytes", "--shard-tokens", "500000", "--valid-fraction", "0.1"]

            whole = os.path.join(place, "whole")
            start = time.monotonic()
            result = essh(*command(whole))
            self.assertEqual(result.returncode, 0, result.stderr)
            seconds = time.monotonic() - start
            expected = file_bytes(whole)
            self.assertGreater(len(expected), 20)

            kills = finished = continued = 0
            while kills < KILLS:
                folder = os.path.join(place, f"killed-{finished}")
                while True:
                    process = subprocess.Popen([ESSH, *command(folder)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
                    time.sleep(random.uniform(0, 0.6 * seconds))
                    alive = process.poll() is None
                    if alive and kills < KILLS:
                        process.send_signal(signal.SIGKILL)
                        kills += 1
                    words = process.communicate(timeout=120)[1]
                    continued += b"continuing" in words
                    if process.returncode != -signal.SIGKILL:
                        self.assertEqual(process.returncode, 0, words)
                        break
                finished += 1
                leftovers = {name for name in os.listdir(folder) if ".tmp-" in name}
                found = {name: data for name, data in file_bytes(folder).items() if name not in leftovers}
                self.assertEqual(found.keys(), expected.keys())
                for name, data in expected.items():
                    self.assertEqual(found[name], data, f"{name} differs")
            self.assertGreater(continued, 3, "hardly any run was continued: the test proves nothing")


if __name__ == "__main__":
    unittest.main()
