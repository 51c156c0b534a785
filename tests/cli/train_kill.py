"""Training that is killed at random moments and started again ends with the same bits as an unbroken one (T1).

usage: ESSH=./essh tests/cli/train_kill.py [--kills N]    (6)
"""
import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from _command import ESSH, essh
from _training import RECIPE, make_data, weights

KILLS = 6


class TrainKill(unittest.TestCase):
    def test_killed_runs_end_with_the_same_bits(self):
        random.seed(7)
        with tempfile.TemporaryDirectory() as place:
            data = make_data(place)

            def command(folder):
                return ["train", "tiny", "--data", data, "-o", folder, "--device", "cpu", "--threads", "1", *RECIPE,
                        "--set", "run.steps=200"]

            whole = os.path.join(place, "whole")
            start = time.monotonic()
            result = essh(*command(whole))
            self.assertEqual(result.returncode, 0, result.stderr)
            seconds = time.monotonic() - start
            expected = weights(whole)

            kills = finished = continued = 0
            while kills < KILLS:
                folder = os.path.join(place, f"killed-{finished}")
                while True:
                    process = subprocess.Popen([ESSH, *command(folder)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
                    time.sleep(random.uniform(0.1 * seconds, seconds))
                    if process.poll() is None and kills < KILLS:
                        process.send_signal(signal.SIGKILL)
                        kills += 1
                    words = process.communicate(timeout=300)[1]
                    continued += b"going on after step" in words
                    if process.returncode != -signal.SIGKILL:
                        self.assertEqual(process.returncode, 0, words)
                        break
                finished += 1
                self.assertEqual(weights(folder), expected)
                left = [name for _, names, _ in os.walk(folder) for name in names if ".tmp-" in name]
                self.assertEqual(left, [], "folders of crashed writes stay")
                shutil.rmtree(folder)
            print(f"{KILLS} kills, {finished} runs to the end, {continued} continued")
            self.assertGreater(continued, KILLS // 3, "hardly any run was continued: the test proves nothing")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=KILLS)
    arguments, rest = parser.parse_known_args()
    KILLS = arguments.kills
    unittest.main(argv=[sys.argv[0], *rest])
