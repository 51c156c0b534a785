"""`essh bench decode` beside what users of llama-bench expect: its options, formats and names of fields."""
import csv
import io
import json
import pathlib
import shutil
import tempfile
import unittest

from _command import EXIT_USAGE, essh, essh_json

DEVICE = ("--device", "cpu")


class BenchDecode(unittest.TestCase):
    def lines(self, *arguments):
        return essh_json("bench", "decode", "tiny", *DEVICE, "--warmup", 0, *arguments, "--json")

    def test_fields_have_the_names_that_other_tools_read(self):
        step = self.lines("-d", 4, "-n", 3, "-b", 2, "-r", 3)[0]
        self.assertEqual((step["n_prompt"], step["n_gen"], step["n_depth"], step["n_batch"]), (0, 3, 4, 2))
        self.assertEqual(step["tier"], "full")
        self.assertEqual(len(step["samples_ts"]), 3)
        self.assertAlmostEqual(step["avg_ts"], sum(step["samples_ts"]) / 3)
        self.assertGreaterEqual(step["stddev_ts"], 0)
        for rate, time, ms in zip(step["samples_ts"], step["samples_ns"], step["samples_ms"]):
            self.assertAlmostEqual(rate * time / 1e9, 3 * 2)  # tokens of a repetition
            self.assertAlmostEqual(time / 1e6, 3 * ms)
        self.assertEqual(step["decode_ms"], sorted(step["samples_ms"])[1])
        self.assertGreater(step["state_bytes"], 0)
        self.assertGreater(step["bytes_per_step"], step["weight_bytes"])
        self.assertEqual(step["bytes_per_token"], step["bytes_per_step"] / 2)
        if "read_bandwidth" in step:  # not where memory is too short to measure it
            self.assertGreater(step["read_bandwidth"], 1e8)
            self.assertAlmostEqual(step["bandwidth_share"],
                                   step["bytes_per_step"] / (step["decode_ms"] / 1e3) / step["read_bandwidth"])

    def test_a_length_of_zero_leaves_its_test_out(self):
        tests = lambda *arguments: [(line["n_prompt"], line["n_gen"], line["n_depth"])
                                    for line in self.lines("-r", 1, *arguments)]
        self.assertEqual(tests("-p", 0, "-n", 2, "-d", 0), [(0, 2, 0)])
        self.assertEqual(tests("-p", 8, "-n", 0, "-d", "0,4"), [(8, 0, 0), (8, 0, 4)])
        self.assertEqual(tests("--n-prompt", "0,8", "--n-gen", "0,2,3", "--n-depth", 4), [(8, 0, 4), (0, 2, 4), (0, 3, 4)])
        for left_out in (("-n", 0), ("-n", 0, "-p", 0), ("-n", 0, "-p", 8, "--profile"), ("-n", 0, "-p", 8, "--draft", "T1")):
            result = essh("bench", "decode", "tiny", *DEVICE, *left_out)
            self.assertEqual(result.returncode, EXIT_USAGE)
            self.assertIn(b"-n a number above 0", result.stderr)
        result = essh("bench", "decode", "tiny", *DEVICE, "--draft", "T1", "-d", 0)
        self.assertEqual(result.returncode, EXIT_USAGE)
        self.assertIn(b"-d a number above 0", result.stderr)

    def test_every_format_has_the_same_tests(self):
        arguments = ("bench", "decode", "tiny", *DEVICE, "--warmup", 0, "-p", 8, "-n", 2, "-d", "0,4", "-b", "1,3", "-r", 1,
                     "--tier", "T1,full")
        expected = [(tier, *test, batch) for tier in ("T1", "full") for test, batch in
                    [((8, 0, 0), 1), ((8, 0, 4), 1)]]
        expected += [(tier, 0, 2, depth, batch) for tier in ("T1", "full") for depth in (0, 4) for batch in (1, 3)]
        keys = ("tier", "n_prompt", "n_gen", "n_depth", "n_batch")

        def facts(line):
            return (line["tier"], *(int(line[key]) for key in keys[1:]))

        text = {name: essh(*arguments, "-o", name).stdout.decode() for name in ("json", "jsonl", "csv", "md")}
        self.assertEqual([facts(line) for line in json.loads(text["json"])], expected)
        self.assertEqual([facts(json.loads(line)) for line in text["jsonl"].splitlines()], expected)
        rows = list(csv.DictReader(io.StringIO(text["csv"])))
        self.assertEqual([facts(row) for row in rows], expected)
        self.assertIn("CPU, ", rows[0]["device"])
        names = [f"{'tg2' if gen else 'pp8'}{f' @ d{depth}' if depth else ''}" for _, _, gen, depth, _ in expected]
        table = [[cell.strip() for cell in row.strip("|").split("|")] for row in text["md"].splitlines()]
        self.assertEqual(len({len(row) for row in table}), 1)
        self.assertEqual([(row[1], row[4], row[5]) for row in table[2:]],
                         [(tier, str(batch), name) for (tier, *_, batch), name in zip(expected, names)])

    def test_csv_survives_any_name(self):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="essh-cli-"))
        try:
            model = folder / 'a "model", they say'
            self.assertEqual(essh("init", "tiny", "-o", model).returncode, 0)
            result = essh("bench", "decode", model, *DEVICE, "-n", 1, "-d", 1, "-r", 1, "-o", "csv")
            self.assertEqual(next(csv.DictReader(io.StringIO(result.stdout.decode())))["model"], str(model))
        finally:
            shutil.rmtree(folder)


if __name__ == "__main__":
    unittest.main()
