"""A family from `init` to exports that Python's safetensors reads, and the two paths of `logits`."""
import json
import pathlib
import shutil
import tempfile
import unittest

import numpy
from safetensors import deserialize, safe_open

from _command import EXIT_BAD_FILE, EXIT_USAGE, essh, essh_json


class ModelFolder(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="essh-cli-"))
        cls.family = cls.folder / "family"
        assert essh("init", "tiny", "-o", cls.family, "--seed", 3).returncode == 0
        assert essh("export", cls.family, "all", "-o", cls.folder / "f32").returncode == 0
        assert essh("export", cls.family, "--tier", "T1,T4", "--dtype", "bf16", "-o", cls.folder / "bf16").returncode == 0

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def test_info_prints_the_numbers_of_the_specification(self):
        tiers = {tier["tier"]: tier for tier in essh_json("info", "370m", "--json")["tiers"]}
        self.assertEqual(list(tiers), [f"T{i}" for i in range(1, 11)])
        self.assertEqual([tiers[t]["parameters"] for t in ("T1", "T4", "T7", "T10")], [92144664, 185254998, 274275867, 370866144])
        self.assertEqual([tiers["T4"][k] for k in ("channels", "ffn", "state_bytes", "kv_bytes")], [18, 1792, 612864, 22020096])

    def test_safetensors_reads_every_export(self):
        tiers = {tier["tier"]: tier["parameters"] for tier in essh_json("info", self.family, "--json")["tiers"]}
        for export in sorted((self.folder / "f32").iterdir()):
            config = json.loads((export / "config.json").read_text())
            with safe_open(export / "model.safetensors", framework="numpy") as file:
                self.assertEqual(file.metadata()["format"], "pt")
                tensors = {name: file.get_tensor(name) for name in file.keys()}
            self.assertEqual(sum(t.size for t in tensors.values()), tiers[export.name])
            self.assertEqual(tensors["model.layers.0.mixer.decay"].shape, (config["spectral_channels"], config["spectral_modes"]))
            self.assertEqual(tensors["model.layers.0.mlp.down_proj.weight"].shape, (config["hidden_size"], config["intermediate_size"]))

    def test_an_export_is_a_slice_of_the_family(self):
        with safe_open(self.family / "model.safetensors", framework="numpy") as file:
            whole = file.get_tensor("model.layers.0.mlp.down_proj.weight")
        with safe_open(self.folder / "f32" / "T4" / "model.safetensors", framework="numpy") as file:
            part = file.get_tensor("model.layers.0.mlp.down_proj.weight")
        numpy.testing.assert_array_equal(part, whole[:, :part.shape[1]])

    def test_quantised_exports_are_read_by_their_description(self):
        with safe_open(self.folder / "f32" / "T4" / "model.safetensors", framework="numpy") as file:
            exact = {name: file.get_tensor(name) for name in file.keys()}
        # fp8 codes: sign, four bits of exponent with bias 7, three of mantissa.
        bits = numpy.arange(256)
        exponent, mantissa, sign = bits >> 3 & 15, bits & 7, numpy.where(bits & 128, -1.0, 1.0)
        fp8 = sign * numpy.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10.0))
        for name, worst in ("q8", 0.01), ("q4", 0.12), ("fp8", 0.04):
            folder = self.folder / name
            self.assertEqual(essh("export", self.family, "--tier", "T4", "--dtype", name, "-o", folder).returncode, 0)
            self.assertTrue(essh_json("verify", folder, "--parent", self.family, "--json")["good"])
            self.assertEqual(essh_json("info", folder, "--json")["dtype"], name)
            config = json.loads((folder / "config.json").read_text())
            self.assertEqual(config["quantization_config"], {"quant_method": "essh", "format": name, "group_size": 32})
            stored = dict(deserialize((folder / "model.safetensors").read_bytes()))
            for tensor, values in exact.items():
                kind, codes = stored[tensor]["dtype"], numpy.frombuffer(stored[tensor]["data"], numpy.uint8)
                if kind == "F32":
                    numpy.testing.assert_array_equal(codes.view(numpy.float32).reshape(values.shape), values)
                    continue
                rows, columns = values.shape
                scales = numpy.frombuffer(stored[tensor + "_scale"]["data"], numpy.uint16).astype(numpy.uint32) << 16
                scales = numpy.repeat(scales.view(numpy.float32).reshape(rows, -1), 32, axis=1)[:, :columns]
                codes = codes.reshape(rows, -1)
                if kind == "I8":
                    numbers = codes.view(numpy.int8).astype(float)
                elif kind == "U8":
                    numbers = numpy.stack([codes & 15, codes >> 4], axis=2).reshape(rows, -1)[:, :columns].astype(float) - 8
                else:
                    numbers = fp8[codes]
                apart = numpy.linalg.norm(numbers * scales - values)
                self.assertLessEqual(apart, worst * numpy.linalg.norm(values), (name, tensor))
            self.assertLess((folder / "model.safetensors").stat().st_size,
                            0.35 * (self.folder / "f32" / "T4" / "model.safetensors").stat().st_size)

    def test_verify_compares_bitwise_with_the_parent(self):
        exports = [*(self.folder / "f32").iterdir(), *(self.folder / "bf16").iterdir()]
        self.assertTrue(essh_json("verify", *exports, "--parent", self.family, "--length", 64, "--json")["good"])
        broken = self.folder / "broken"
        shutil.copytree(self.folder / "f32" / "T4", broken)
        with open(broken / "model.safetensors", "r+b") as file:
            file.seek(-4000, 2)
            file.write(b"\x00\x00\x80\x3f" * 8)
        result = essh("verify", broken, "--parent", self.family, "--length", 64)
        self.assertEqual(result.returncode, EXIT_BAD_FILE)
        self.assertIn(b"FAIL", result.stdout)

    def test_m7_weights_that_are_not_finite_run_only_when_forced(self):
        broken = self.folder / "infinite"
        shutil.copytree(self.folder / "f32" / "T2", broken)
        with open(broken / "model.safetensors", "r+b") as file:
            file.seek(-4, 2)
            file.write(b"\x00\x00\x80\x7f")
        call = ("generate", broken, "--tokens", "1,2,3", "-n", "1", "--ids")
        refused = essh(*call)
        self.assertEqual(refused.returncode, EXIT_BAD_FILE)
        self.assertIn(b"not finite", refused.stderr)
        self.assertNotIn(b"values that are not finite", essh(*call, "--force").stderr)

    def test_what_is_not_there_is_named(self):
        none = self.folder / "none"
        for command in ("info", none), ("verify", none), ("verify", none, "--parent", self.family), ("logits", none, "--tokens", none, "--out", none), \
                ("generate", none, "-p", "a"), ("export", none, "all", "-o", self.folder / "of-none"), ("verify", self.family, "--parent", none):
            with self.subTest(command=command):
                result = essh(*command)
                self.assertIn(result.returncode, (EXIT_USAGE, EXIT_BAD_FILE))
                self.assertIn(f"{none}: there is no such folder", (result.stdout + result.stderr).decode())
        result = essh("export", self.family, "T4", "-o", self.folder / "of-none")
        self.assertEqual(result.returncode, EXIT_USAGE)
        self.assertIn('"T4" is not the word all; a tier is named with --tier', result.stderr.decode())
        self.assertFalse((self.folder / "of-none").exists())

    def test_verify_refuses_a_precision_of_another_device(self):
        result = essh("verify", self.folder / "f32" / "T4", "--parent", self.family, "--precision", "bf16")
        self.assertEqual(result.returncode, EXIT_USAGE)
        self.assertIn(b"CUDA", result.stderr)
        self.assertNotIn(b"FAIL", result.stdout)

    def test_a_tier_of_the_family_writes_what_its_export_writes(self):
        outputs = [essh("generate", model, "--tokens", "1,2,3", "--max-tokens", "20", "--ids", "--tier", tier).stdout
                   for model, tier in ((self.family, "T4"), (self.folder / "f32" / "T4", "full"))]
        self.assertTrue(outputs[0].strip())
        self.assertEqual(*outputs)

    def test_logits_of_both_paths_agree(self):
        tokens, out = self.folder / "ids.json", self.folder / "logits.npy"
        tokens.write_text(json.dumps([(7 * i * i + 3) % 2048 for i in range(200)]))
        logits = {}
        for path in ("parallel", "recurrent"):
            self.assertEqual(essh("logits", self.family, "--tokens", tokens, "--out", out, "--tier", "T4", "--path", path).returncode, 0)
            logits[path] = numpy.load(out)
        self.assertEqual(logits["parallel"].shape, (200, 2048))
        error = numpy.linalg.norm(logits["parallel"] - logits["recurrent"]) / numpy.linalg.norm(logits["parallel"])
        self.assertLess(error, 1e-5)
        tokens.write_text("[1, 99999]")
        self.assertEqual(essh("logits", self.family, "--tokens", tokens, "--out", out).returncode, EXIT_USAGE)

    def test_a_saved_state_goes_on_where_it_stopped(self):
        export, state = self.folder / "f32" / "T4", self.folder / "state"
        common = ("--ids", "--ignore-eos", "--json")
        whole = essh_json("generate", export, "--tokens", "1,2,3", "-n", 12, *common)["tokens"]
        first = essh_json("generate", export, "--tokens", "1,2,3", "-n", 5, "--state-out", state, *common)["tokens"]
        rest = essh_json("generate", export, "--state-in", state, "-n", 7, *common)["tokens"]
        self.assertEqual(first + rest, whole)
        self.assertEqual(essh("generate", self.folder / "f32" / "T5", "--state-in", state, "-n", 1).returncode, EXIT_BAD_FILE)


if __name__ == "__main__":
    unittest.main()
