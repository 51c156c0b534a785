"""`essh bench serve` and the load scripts of tests/load, in short."""
import csv
import io
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

from _command import ESSH, EXIT_UNSUPPORTED, EXIT_USAGE, essh
from _server import Server

CANNOT_RUN = 77
LOAD = pathlib.Path(__file__).resolve().parents[1] / "load" / "run"


class ServeLoad(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="essh-cli-"))
        cls.model = cls.folder / "family"
        assert essh("init", "tiny", "-o", cls.model, "--seed", 3, "--vocab-size", 257).returncode == 0

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def bench(self, target, *arguments):
        result = essh("bench", "serve", target, *arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout.decode()

    def test_a_model_served_for_the_measurement(self):
        small = ("-c", "1,4", "-p", 8, "-n", "3,5", "--requests", 8, "--tier", "T1")
        lines = json.loads(self.bench(self.model, *small, "-o", "json"))
        self.assertEqual([(line["n_gen"], line["concurrency"]) for line in lines], [(3, 1), (3, 4), (5, 1), (5, 4)])
        for line in lines:
            self.assertEqual((line["completed"], line["failed"], line["cancelled"]), (8, 0, 0))
            self.assertAlmostEqual(line["output_tokens_per_second"] * line["seconds"], 8 * line["n_gen"], places=6)
            self.assertAlmostEqual(line["prompt_tokens_per_second"] * line["seconds"], 8 * 8, places=6)
            for times in ("first_token_ms", "request_ms", "health_ms"):
                spread = [line[times][share] for share in ("p50", "p90", "p99")]
                self.assertEqual(spread, sorted(spread))
            self.assertGreater(line["first_token_ms"]["p50"], 0)
        rows = list(csv.DictReader(io.StringIO(self.bench(self.model, *small, "-o", "csv"))))
        self.assertEqual([row["completed"] for row in rows], ["8"] * 4)
        table = self.bench("tiny", "-c", 2, "-p", 4, "-n", 2, "--requests", 2, "--no-stream").splitlines()
        self.assertEqual([line.count("|") for line in table], [11, 11, 11])

    def test_a_server_by_its_address(self):
        server = Server(self.model, "--bytes", "--api-key", "secret")
        url = f"http://127.0.0.1:{server.port}"
        line = json.loads(self.bench(url + "/v1", "-c", 3, "-p", 4, "-n", 6, "--requests", 9, "--api-key", "secret", "--model", "family", "--tier", "T2",
                                     "--cancel", 0.5, "--json"))[0]
        self.assertEqual((line["completed"] + line["cancelled"], line["failed"]), (9, 0))
        refused = essh("bench", "serve", url, "--requests", 2, "-c", 1)
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn(b"HTTP 401", refused.stderr)
        self.assertEqual(server.end()[0], 0)
        for target in (url, "http://", "https://localhost", "http://localhost:99999"):
            self.assertEqual(essh("bench", "serve", target).returncode, EXIT_USAGE, target)

    def test_the_load_scripts(self):
        for arguments in (["streams", "--count", "300", "--tokens", "4"], ["requests", "--count", "2000"]):
            result = subprocess.run([sys.executable, str(LOAD), "--essh", ESSH, "--no-limits", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                    check=False)
            self.assertEqual(result.returncode, 0, result.stdout.decode())


if __name__ == "__main__":
    probe = essh("serve", "nothing", "--check")
    if probe.returncode == EXIT_UNSUPPORTED:
        print(probe.stderr.decode())
        sys.exit(CANNOT_RUN)
    unittest.main()
