"""`essh evaluate length` against the losses of `essh logits`."""
import json
import math
import pathlib
import random
import shutil
import tempfile
import unittest
import xml.etree.ElementTree

import numpy

from _command import EXIT_USAGE, byte_model, essh, essh_json

LENGTHS, WINDOWS, BINS = (24, 70), 5, 7


class EvaluateLength(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="essh-cli-"))
        cls.model = byte_model(cls.folder / "model")
        rng = random.Random(6)
        cls.text = cls.folder / "text.txt"
        # Three windows of the longer length and not the fourth.
        cls.text.write_text("".join(rng.choice("abcdef ,.") for _ in range(3 * (LENGTHS[1] + 1) + 20)))

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def losses(self, tokens, tier):
        ids, out = self.folder / "ids.json", self.folder / "logits.npy"
        ids.write_text(json.dumps(tokens[:-1]))
        self.assertEqual(essh("logits", self.model, "--tokens", ids, "--out", out, "--tier", tier).returncode, 0)
        rows = numpy.load(out).astype(numpy.float64)
        return numpy.log(numpy.exp(rows).sum(axis=1)) - rows[numpy.arange(len(rows)), tokens[1:]]

    def test_windows_and_positions(self):
        svg = self.folder / "length.svg"
        report = essh_json("evaluate", "length", self.model, "--data", self.text, "--lengths", ",".join(map(str, LENGTHS)), "--windows",
                           WINDOWS, "--bins", BINS, "--tiers", "T1,T10", "--svg", svg, "--json")
        tokens = [*self.text.read_bytes(), 256]
        self.assertEqual([(r["tier"], r["length"], r["windows"]) for r in report["results"]],
                         [(tier, length, windows) for tier in ("T1", "T10") for length, windows in zip(LENGTHS, (WINDOWS, 3))])
        for result in report["results"]:
            length = result["length"]
            losses = numpy.array([self.losses(tokens[w * (length + 1):(w + 1) * (length + 1)], result["tier"])
                                  for w in range(result["windows"])])
            self.assertAlmostEqual(result["nll"], losses.mean(), delta=1e-5)
            self.assertAlmostEqual(result["perplexity"], math.exp(result["nll"]), delta=1e-9)
            self.assertEqual([p["begin"] for p in result["positions"]] + [length], [0] + [p["end"] for p in result["positions"]])
            self.assertEqual(len(result["positions"]), BINS)
            for place in result["positions"]:
                self.assertAlmostEqual(place["nll"], losses[:, place["begin"]:place["end"]].mean(), delta=1e-5)
        self.assertEqual(xml.etree.ElementTree.parse(svg).getroot().tag, "{http://www.w3.org/2000/svg}svg")

    def test_too_little_text(self):
        result = essh("evaluate", "length", self.model, "--data", self.text, "--lengths", 100000, "--tiers", "T1")
        self.assertEqual(result.returncode, EXIT_USAGE)
        self.assertIn(b"give more text or shorter lengths", result.stderr)


if __name__ == "__main__":
    unittest.main()
