"""What a training run survives as a whole command. Labels (T2) are those of docs/reliability.md, which names the other
tests of these faults."""
import json
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from _command import ESSH, EXIT_BAD_FILE, EXIT_USAGE, HANGS, essh
from _training import RECIPE, make_data, weights

EXIT_INTERRUPTED = 75
CLOCK_GOES_BACKWARDS = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>

static long long back;

int clock_gettime(clockid_t clock, struct timespec* now) {
  int (*real)(clockid_t, struct timespec*) = dlsym(RTLD_NEXT, "clock_gettime");
  const int status = real(clock, now);
  if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) now->tv_sec -= __atomic_add_fetch(&back, 3600, __ATOMIC_RELAXED);
  return status;
}
int gettimeofday(struct timeval* restrict now, void* restrict zone) {
  (void)zone;
  struct timespec exact;
  const int status = clock_gettime(CLOCK_REALTIME, &exact);
  now->tv_sec = exact.tv_sec;
  now->tv_usec = exact.tv_nsec / 1000;
  return status;
}
time_t time(time_t* out) {
  struct timespec exact;
  clock_gettime(CLOCK_REALTIME, &exact);
  if (out) *out = exact.tv_sec;
  return exact.tv_sec;
}
"""
LONG = ["--set", "run.steps=1000000"]  # longer than a test waits


class Training(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="essh-faults-")
        cls.data = make_data(cls.folder)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def setUp(self):
        self.run_folder = pathlib.Path(tempfile.mkdtemp(dir=self.folder)) / "run"

    def command(self, *more, data=None):
        return ["train", "tiny", "--data", data or self.data, "-o", self.run_folder, "--device", "cpu", "--threads", "1", *RECIPE, *more]

    def metrics(self):
        try:
            lines = (self.run_folder / "metrics.jsonl").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in lines]

    def started(self, *arguments):
        """Starts a process and waits for its first steps."""
        metrics = self.run_folder / "metrics.jsonl"

        def lines():
            return metrics.read_bytes().count(b"\n") if metrics.exists() else 0
        before = lines()
        process = subprocess.Popen([ESSH, *map(str, arguments)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        while lines() < before + 2:
            if process.poll() is not None:
                raise AssertionError(process.communicate()[1])
            time.sleep(0.01)
        return process

    def test_t2_a_full_disk_costs_checkpoints_and_is_told_at_the_end(self):
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        result = subprocess.run([ESSH, *map(str, self.command("--stop-after", "9"))], capture_output=True, preexec_fn=limit, timeout=HANGS,
                                check=False)
        self.assertEqual(result.returncode, EXIT_BAD_FILE, result.stderr)
        self.assertIn(b"ulimit", result.stderr)
        failed = [entry["step"] for entry in self.metrics() if entry["kind"] == "checkpoint_failed"]
        self.assertEqual(failed, [3, 6, 9])
        self.assertEqual([name for name in os.listdir(self.run_folder / "checkpoints") if ".tmp-" in name], [])
        self.assertEqual(essh(*self.command()).returncode, 0)

    def test_t6_a_signal_saves_and_ends_with_its_own_code(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            process = self.started(*self.command(*LONG))
            process.send_signal(number)
            words = process.communicate(timeout=HANGS)[1]
            self.assertEqual(process.returncode, EXIT_INTERRUPTED, words)
            steps = sorted(os.listdir(self.run_folder / "checkpoints"))
            self.assertIn(str(int(steps[-1].split("-")[1])).encode(), words)

    def test_t7_a_shard_that_shrinks_is_named(self):
        data = self.run_folder.parent / "data"
        shutil.copytree(self.data, data)
        process = self.started(*self.command(*LONG, data=data))
        os.truncate(data / "train-00000.bin", 128)
        words = process.communicate(timeout=HANGS)[1]
        self.assertEqual(process.returncode, EXIT_BAD_FILE, words)
        self.assertIn(b"train-00000.bin", words)
        result = essh(*self.command(*LONG, data=data))
        self.assertEqual(result.returncode, EXIT_BAD_FILE)
        self.assertIn(b"train-00000.bin", result.stderr)

    def test_damaged_checkpoints_are_set_aside(self):
        self.assertEqual(essh(*self.command("--stop-after", "9")).returncode, EXIT_INTERRUPTED)
        for checkpoint in (self.run_folder / "checkpoints").iterdir():
            os.truncate(checkpoint / "state.safetensors", 1000)
        before = self.metrics()
        result = essh(*self.command())
        self.assertEqual(result.returncode, EXIT_BAD_FILE, result.stderr)
        self.assertIn(b"restart", result.stderr)
        self.assertEqual(self.metrics(), before)
        self.assertEqual(essh(*self.command("--restart")).returncode, 0)
        whole = self.run_folder
        self.run_folder = self.run_folder.parent / "whole"
        self.assertEqual(essh(*self.command()).returncode, 0)
        self.assertEqual(weights(whole), weights(self.run_folder))

    def test_t8_two_runs_in_one_folder(self):
        process = self.started(*self.command(*LONG))
        result = essh(*self.command(*LONG))
        self.assertEqual(result.returncode, EXIT_USAGE, result.stderr)
        self.assertIn(f"pid {process.pid} on ".encode(), result.stderr)
        process.send_signal(signal.SIGKILL)
        process.communicate()

    def clock_shim(self):
        """A library that sets the wall clock back an hour each time it is read; monotonic clocks are unaffected."""
        source = pathlib.Path(self.folder) / "backwards.c"
        library = source.with_suffix(".so")
        if not library.exists():
            source.write_text(CLOCK_GOES_BACKWARDS)
            subprocess.run(["cc", "-shared", "-fPIC", "-O1", source, "-o", library, "-ldl"], check=True)
        return {**os.environ, "LD_PRELOAD": str(library)}

    def test_t9_a_clock_that_goes_backwards_changes_nothing(self):
        under_shim = self.clock_shim()
        times = subprocess.run([sys.executable, "-c", "import time; print(time.time(), time.time(), time.monotonic() > 0)"],
                               env=under_shim, capture_output=True, check=True).stdout.split()
        self.assertLess(float(times[1]), float(times[0]) - 3000, "the clock does not go backwards: the test proves nothing")

        self.assertEqual(essh(*self.command()).returncode, 0)
        expected, usual = weights(self.run_folder), self.metrics()
        self.run_folder = self.run_folder.parent / "backwards"
        for more in (["--stop-after", "20"], []):
            # Checkpoints are ordered by step: by the clock, the second command sees the newest as the oldest.
            for age, checkpoint in enumerate(sorted((self.run_folder / "checkpoints").glob("*"))):
                for path in (*checkpoint.iterdir(), checkpoint):
                    os.utime(path, (1e9 - 3600 * age, 1e9 - 3600 * age))
            result = subprocess.run([ESSH, *map(str, self.command(*more))], capture_output=True, env=under_shim, timeout=HANGS, check=False)
            self.assertEqual(result.returncode, EXIT_INTERRUPTED if more else 0, result.stderr)
        self.assertIn(b"going on after step 20", result.stderr)
        self.assertEqual(weights(self.run_folder), expected)

        met = self.metrics()
        timed = ("tokens_per_second", "mfu", "seconds")
        for a, b in zip(usual, met, strict=True):
            self.assertEqual({k: v for k, v in a.items() if k not in timed}, {k: v for k, v in b.items() if k not in timed})
        steps = [entry for entry in met if entry["kind"] == "step"]
        self.assertEqual([entry["step"] for entry in steps], list(range(1, 41)))
        for entry in steps:
            for name in timed:
                self.assertGreater(entry[name], 0, entry)
        for half in (steps[:20], steps[20:]):
            seconds = [entry["seconds"] for entry in half]
            self.assertEqual(seconds, sorted(seconds))
            self.assertLess(seconds[-1], 120)

    def test_the_same_data_by_any_name_is_the_same_run(self):
        place = pathlib.Path(self.data).parent
        for name in ("data", "./data/", self.data):
            result = essh(*self.command("--stop-after", "3", data=name), cwd=place)
            self.assertEqual(result.returncode, EXIT_INTERRUPTED, result.stderr)
        self.assertIn(f'path: "{self.data}"', (self.run_folder / "recipe.yaml").read_text())


if __name__ == "__main__":
    unittest.main()
