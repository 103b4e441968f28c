#!/usr/bin/env python3
"""The gate on work fails where it must: given counts instead of counting."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
RECORD = "# comment\na pass\t1000\tfirst\na step\t200\tfirst\n"


class Gate(unittest.TestCase):
    def gate(self, measured, record=RECORD):
        with tempfile.NamedTemporaryFile("w", suffix=".tsv") as file:
            file.write(record)
            file.flush()
            done = subprocess.run([sys.executable, os.path.join(ROOT, "tools", "work.py"), "nowhere", "--record", file.name,
                                   "--measured", json.dumps(measured)], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    def test_as_recorded(self):
        for step in (200, 209, 191, 210):
            self.assertEqual(self.gate({"a pass": 1000, "a step": step})[0], 0, step)

    def test_more_work_fails_and_names_it(self):
        code, output = self.gate({"a pass": 1000, "a step": 211})
        self.assertEqual(code, 1)
        self.assertIn("a step: 211 instructions, +5.5% of 200: MORE WORK", output)
        self.assertIn("a pass: 1,000 instructions, +0.0% of 1,000: as recorded", output)

    def test_less_work_passes_and_asks_to_be_recorded(self):
        code, output = self.gate({"a pass": 500, "a step": 200})
        self.assertEqual(code, 0)
        self.assertIn("record it", output)

    def test_the_record_must_be_whole(self):
        both = {"a pass": 1000, "a step": 200}
        self.assertEqual(self.gate(both)[0], 0)
        for record in ("a pass\t1000\tfirst\n", RECORD + "a jump\t5\tfirst\n", "a pass\t1000\t\na step\t200\tfirst\n",
                       "a pass\t1000\na step\t200\tfirst\n", "a pass\t0\tfirst\na step\t200\tfirst\n", "a pass\tx\ty\n", ""):
            self.assertEqual(self.gate(both, record)[0], 1, record)

    def test_the_record_in_the_repository_can_be_read(self):
        sys.path.insert(0, os.path.join(ROOT, "tools"))
        import work
        self.assertEqual(set(work.read_record(os.path.join(ROOT, "bench", "work.tsv"))), set(work.COUNTS))


if __name__ == "__main__":
    unittest.main()
