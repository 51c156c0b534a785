import os
import unittest

from _command import EXIT_USAGE, essh, essh_json, processor_seconds


class Doctor(unittest.TestCase):
    def test_facts_agree_with_the_system(self):
        facts = essh_json("doctor", "--json")
        self.assertEqual(facts["processor"]["architecture"], os.uname().machine)
        self.assertEqual(facts["processor"]["cores"], len(os.sched_getaffinity(0)))
        physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        self.assertLessEqual(facts["memory"]["total_bytes"], physical)
        self.assertLessEqual(facts["memory"]["available_bytes"], facts["memory"]["total_bytes"])
        self.assertEqual(facts["disk"]["folder"], os.getcwd())
        self.assertGreater(facts["disk"]["free_bytes"], 0)

    def test_simd_agrees_with_cpuinfo(self):
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            words = set(file.read().split())
        simd = essh_json("doctor", "--json")["processor"]["simd"]
        kernel_names = {"AVX2": "avx2", "AVX-512": "avx512f", "AMX BF16": "amx_bf16", "NEON": "asimd", "SVE": "sve"}
        for name, present in simd.items():
            if name in kernel_names:
                self.assertEqual(present, kernel_names[name] in words, name)

    def test_reads_are_measured_quickly(self):
        before = processor_seconds()
        facts = essh_json("doctor", "--json")
        self.assertLess(processor_seconds() - before, 20)  # about 1 s
        if facts["memory"]["available_bytes"] > 1 << 30:
            self.assertGreater(facts["read_bandwidth"], 1e8)
            self.assertLess(facts["read_bandwidth"], 1e14)

    def test_libraries_have_a_version_or_are_off(self):
        libraries = essh_json("doctor", "--json")["libraries"]
        self.assertLessEqual({"OpenBLAS", "Highway", "PCRE2", "zstd", "CUDA", "MPI"}, {library["name"] for library in libraries})
        for library in libraries:
            self.assertEqual(library["found"], library["version"] is not None, library)

    def test_text_names_the_same_facts(self):
        text = essh("doctor").stdout.decode()
        facts = essh_json("doctor", "--json")
        self.assertIn(facts["processor"]["model"], text)
        for library in facts["libraries"]:
            self.assertIn(library["version"] or "off", text)

    def test_unknown_option_is_a_usage_error(self):
        result = essh("doctor", "--frobnicate")
        self.assertEqual(result.returncode, EXIT_USAGE)
        self.assertEqual(result.stdout, b"")
        self.assertIn(b"--frobnicate", result.stderr)


if __name__ == "__main__":
    unittest.main()
