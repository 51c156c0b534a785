"""Several ranks under mpirun: one model, the same bits every time, and no rank left behind when one dies."""
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from _command import ESSH, EXIT_USAGE, HANGS, essh, essh_json
from _training import RECIPE, make_data, weights

CANNOT_RUN = 77
EXIT_INTERRUPTED = 75
ENVIRONMENT = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
               "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_hwloc_base_binding_policy": "none"}


def command(data, folder, *more):
    return ["train", "tiny", "--data", data, "-o", folder, "--device", "cpu", "--threads", "1", *RECIPE, *more]


def steps(run):
    with open(os.path.join(run, "metrics.jsonl"), encoding="utf-8") as file:
        return [entry for entry in map(json.loads, file) if entry["kind"] == "step"]


def start(ranks, *arguments):
    return subprocess.Popen(["mpirun", "-n", str(ranks), ESSH, *arguments], env=ENVIRONMENT, stdout=subprocess.DEVNULL,
                            stderr=subprocess.PIPE, start_new_session=True)


def ranks_of(process, ranks, deadline=HANGS):
    """Process ids of the ranks started by mpirun."""
    end = time.monotonic() + deadline
    while time.monotonic() < end:
        with open(f"/proc/{process.pid}/task/{process.pid}/children", encoding="utf-8") as file:
            children = [int(word) for word in file.read().split()]
        found = []
        for child in children:
            with open(f"/proc/{child}/cmdline", "rb") as file:
                if file.read().split(b"\0")[0] == os.fsencode(ESSH):
                    found.append(child)
        if len(found) == ranks:
            return found
        time.sleep(0.05)
    raise AssertionError("mpirun has not started the ranks")


def lives(process):
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


class TrainRanks(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        cls.place = cls.scratch.name
        cls.data = make_data(cls.place)

    @classmethod
    def tearDownClass(cls):
        cls.scratch.cleanup()

    def run_on(self, ranks, folder, *more):
        process = start(ranks, *command(self.data, folder, *more))
        words = process.communicate(timeout=HANGS)[1]
        return process.returncode, words

    def test_one_and_two_ranks_agree_and_two_repeat_their_bits(self):
        one, two, again = (os.path.join(self.place, name) for name in ("one", "two", "again"))
        settings = ("--set", "elastic.ordering_period=0")
        self.assertEqual(essh(*command(self.data, one, *settings)).returncode, 0)
        for folder in (two, again):
            code, words = self.run_on(2, folder, *settings)
            self.assertEqual(code, 0, words)
            self.assertEqual(words.count(b"step 40: validation"), 1, words)
        self.assertEqual(weights(two), weights(again))
        alone, pair = steps(one), steps(two)
        self.assertEqual(len(pair), 40)
        for a, b in zip(alone, pair):
            self.assertEqual(a["step"], b["step"])
            self.assertAlmostEqual(a["loss"], b["loss"], delta=1e-3 * a["loss"])
            self.assertEqual(a["shares"], b["shares"])

    def test_stopped_on_two_ranks_goes_on_alone_and_on_two(self):
        whole, pieces = os.path.join(self.place, "whole"), os.path.join(self.place, "pieces")
        self.assertEqual(self.run_on(2, whole)[0], 0)
        code, words = self.run_on(2, pieces, "--stop-after", "17")
        self.assertEqual(code, EXIT_INTERRUPTED, words)
        self.assertIn(b"stopped after step 17", words)
        straight = os.path.join(self.place, "straight")
        shutil.copytree(pieces, straight)
        code, words = self.run_on(2, straight)
        self.assertEqual(code, 0, words)
        self.assertEqual(weights(straight), weights(whole))
        result = essh(*command(self.data, pieces, "--stop-after", "10"))
        self.assertEqual(result.returncode, EXIT_INTERRUPTED, result.stderr)
        code, words = self.run_on(2, pieces)
        self.assertEqual(code, 0, words)
        self.assertIn(b"going on after step 27", words)
        self.assertAlmostEqual(steps(pieces)[-1]["loss"], steps(whole)[-1]["loss"], delta=0.02)

    def test_a_signal_to_one_rank_stops_all(self):
        folder = os.path.join(self.place, "signalled")
        process = start(2, *command(self.data, folder, "--set", "run.steps=100000"))
        victim = ranks_of(process, 2)[1]
        self.wait_for_steps(folder, 2)
        os.kill(victim, signal.SIGTERM)
        words = process.communicate(timeout=HANGS)[1]
        self.assertEqual(process.returncode, EXIT_INTERRUPTED, words)
        self.assertTrue(any(name.startswith("step-") for name in os.listdir(os.path.join(folder, "checkpoints"))))

    # Fault T5 of docs/reliability.md.
    def test_a_dead_rank_ends_the_others(self):
        folder = os.path.join(self.place, "dead")
        process = start(2, *command(self.data, folder, "--set", "run.steps=100000"))
        ranks = ranks_of(process, 2)
        self.wait_for_steps(folder, 2)
        os.kill(ranks[1], signal.SIGKILL)
        words = process.communicate(timeout=HANGS)[1]
        self.assertNotIn(b"has waited", words)  # for ten minutes
        self.assertNotEqual(process.returncode, 0)
        self.assertIn(b"signal 9", words)
        end = time.monotonic() + HANGS
        while any(map(lives, ranks)) and time.monotonic() < end:
            time.sleep(0.05)
        self.assertFalse(any(map(lives, ranks)), "a rank lives on")

    def test_ranks_that_cannot_share_a_step_are_refused(self):
        code, words = self.run_on(3, os.path.join(self.place, "three"))
        self.assertEqual(code, EXIT_USAGE, words)
        self.assertIn(b"which 3 ranks cannot share evenly", words)

    def wait_for_steps(self, run, count):
        end = time.monotonic() + HANGS
        path = os.path.join(run, "metrics.jsonl")
        while time.monotonic() < end:
            if os.path.exists(path) and len(steps(run)) >= count:
                return
            time.sleep(0.05)
        self.fail("no steps were made")


if __name__ == "__main__":
    found = {library["name"]: library["found"] for library in essh_json("doctor", "--json").get("libraries", [])}
    if not shutil.which("mpirun") or not found.get("MPI", False):
        print("train_ranks: no mpirun, or a build without MPI")
        sys.exit(CANNOT_RUN)
    unittest.main()
