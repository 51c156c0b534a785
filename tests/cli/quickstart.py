"""`./quickstart FILE` from one text file to tokens, with a few steps of training."""
import os
import pathlib
import random
import re
import subprocess
import tempfile
import unittest

from _command import ESSH, HANGS

QUICKSTART = pathlib.Path(__file__).resolve().parents[2] / "quickstart"


def quickstart(*arguments):
    return subprocess.run(["bash", QUICKSTART, *map(str, arguments)], capture_output=True, text=True, timeout=HANGS, check=False,
                          env={**os.environ, "NO_COLOR": "1"})


class Quickstart(unittest.TestCase):
    def test_one_text_file_is_enough(self):
        generator = random.Random(3)
        with tempfile.TemporaryDirectory() as place:
            text = pathlib.Path(place) / "my text.txt"
            text.write_text("".join(" ".join(f"word{generator.randrange(30)}" for _ in range(12)) + ".\n" for _ in range(500)))
            run = pathlib.Path(place) / "run"
            command = ("--essh", ESSH, "-o", run, "--steps", 2, text)
            result = quickstart(*command)
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
            self.assertIn("== generate done", result.stdout)
            # A model of two steps may generate any byte.
            before, _, rest = result.stdout.partition("== generate\n")
            self.assertNotIn("\x1b", before + rest[rest.index("== generate done"):] + result.stderr)
            for words in (f"essh chat {run}/family", f"essh serve {run}/family", "open http://127.0.0.1:8080/"):
                self.assertIn(words, result.stdout)
            # The console finds the frontier in the run.
            for name in ("frontier.svg", "family/frontier.json", "family/report.html", "exports/T10/model.safetensors"):
                self.assertTrue((run / name).is_file(), name)
            self.assertFalse((run / "dense").exists(), "the control was not asked for")

            result = quickstart("--compare", *command)
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
            table = result.stdout[result.stdout.index("== compare\n"):result.stdout.index("== compare done")]
            self.assertRegex(table, rf"tier +{re.escape(str(run))}/family +{re.escape(str(run))}/dense")
            self.assertEqual(len(re.findall(r"(?m)^T\d+ +\d+\.\d+ +\d+\.\d+$", table)), 10, table)

    def test_mistakes_are_usage_errors(self):
        for arguments in (["--nonsense"], ["--steps", "0", "x"], ["-o"], ["no such file"], [QUICKSTART, QUICKSTART]):
            with self.subTest(arguments=arguments):
                result = quickstart(*arguments)
                self.assertEqual(result.returncode, 2, result.stdout)
                self.assertIn("usage:", result.stderr)


if __name__ == "__main__":
    unittest.main()
