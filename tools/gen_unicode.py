#!/usr/bin/env python3
"""Writes src/text/unicode_tables.cc from the Unicode Character Database (Debian package unicode-data, 15.0.0).

    tools/gen_unicode.py [--ucd /usr/share/unicode] > src/text/unicode_tables.cc
"""

import argparse
import pathlib

BLOCK = 128
CODE_POINTS = 0x110000
OTHER, LETTER, MARK, NUMBER, SPACE, NFC_UNSAFE = 0, 1, 2, 3, 4, 8  # keep in step with unicode.h


def fields(path):
    """The semicolon-separated fields of each data line, comments removed."""
    for line in path.read_text(encoding="utf-8").splitlines():
        line = line.split("#")[0].strip()
        if line:
            yield [field.strip() for field in line.split(";")]


def span(text):
    first, _, last = text.partition("..")
    return range(int(first, 16), int(last or first, 16) + 1)


def read(ucd):
    table = bytearray(CODE_POINTS)
    classes = {"L": LETTER, "M": MARK, "N": NUMBER}
    first = None
    for code, name, category, combining, *_ in fields(ucd / "UnicodeData.txt"):
        code = int(code, 16)
        if name.endswith(", First>"):
            first = code
            continue
        value = classes.get(category[0], OTHER) | (NFC_UNSAFE if combining != "0" else 0)
        for c in range(code if first is None else first, code + 1):
            table[c] = value
        first = None
    for code, name, *_ in fields(ucd / "PropList.txt"):
        if name == "White_Space":
            for c in span(code):
                assert table[c] == OTHER
                table[c] = SPACE
    for code, name, *value in fields(ucd / "DerivedNormalizationProps.txt"):
        if name == "NFC_QC" and value[0] in ("N", "M"):
            for c in span(code):
                table[c] |= NFC_UNSAFE
    return table


def array(values, per_line):
    lines = [",".join(map(str, values[i : i + per_line])) for i in range(0, len(values), per_line)]
    return "    " + ",\n    ".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ucd", type=pathlib.Path, default=pathlib.Path("/usr/share/unicode"))
    ucd = parser.parse_args().ucd
    version = (ucd / "PropList.txt").read_text(encoding="utf-8").split("\n")[0].removeprefix("# PropList-")[:-4]
    table = read(ucd)
    blocks, index = {}, []
    for i in range(0, CODE_POINTS, BLOCK):
        index.append(blocks.setdefault(bytes(table[i : i + BLOCK]), len(blocks)))
    assert len(blocks) <= 256
    print(f"// Made by tools/gen_unicode.py from Unicode {version}; do not edit.\n")
    print('#include "text/unicode.h"\n')
    print("// clang-format off\nnamespace calla::unicode_detail {\n")
    print(f"const uint8_t kBlockOf[{len(index)}] = {{\n{array(index, 32)}}};\n")
    print(f"const uint8_t kBlocks[{len(blocks)}][kBlockSize] = {{")
    for block in blocks:
        print("  {\n" + array(block, 64) + "},")
    print("};\n\n}  // namespace calla::unicode_detail")


if __name__ == "__main__":
    main()
