"""Training that is killed at random moments and started again ends with the same bits as an unbroken one (T1).

usage: ESSH=./essh tests/cli/train_kill.py [--kills N]    (6)
"""
import argparse
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from _command import ESSH, HANGS, essh
from _training import RECIPE, make_data, weights

KILLS = 6


def steps_made(folder):
    """The last step in the metrics of a run. A torn last line does not count."""
    try:
        with open(os.path.join(folder, "metrics.jsonl"), "rb") as file:
            file.seek(-min(4096, file.seek(0, os.SEEK_END)), os.SEEK_END)
            found = re.findall(rb'"kind":"step","step":(\d+),', file.read())
    except FileNotFoundError:
        return 0
    return int(found[-1]) if found else 0


class TrainKill(unittest.TestCase):
    def test_killed_runs_end_with_the_same_bits(self):
        random.seed(7)
        with tempfile.TemporaryDirectory() as place:
            data = make_data(place)

            def command(folder):
                return ["train", "tiny", "--data", data, "-o", folder, "--device", "cpu", "--threads", "1", *RECIPE,
                        "--set", "run.steps=200"]

            whole = os.path.join(place, "whole")
            result = essh(*command(whole))
            self.assertEqual(result.returncode, 0, result.stderr)
            expected = weights(whole)

            kills = finished = continued = 0
            while kills < KILLS:
                folder = os.path.join(place, f"killed-{finished}")
                while True:
                    # The moment of a kill is counted in steps, then in milliseconds within a step; every fourth comes
                    # soon after the start.
                    until = steps_made(folder) + random.randint(7, 60)
                    process = subprocess.Popen([ESSH, *command(folder)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
                    if kills % 4 == 3:
                        time.sleep(random.uniform(0, 0.2))
                    else:
                        while steps_made(folder) < until and process.poll() is None:
                            time.sleep(0.001)
                        time.sleep(random.uniform(0, 0.01))
                    if process.poll() is None and kills < KILLS:
                        process.send_signal(signal.SIGKILL)
                        kills += 1
                    words = process.communicate(timeout=HANGS)[1]
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
