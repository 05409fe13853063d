"""Prints the data of text_stream_cases.cpp: what Python's incremental decoder makes of ill-formed UTF-8."""

from __future__ import annotations

import codecs
import itertools

SAMPLES = """41 41c3a942 e282ac f09f9880 efbbbf41 0041 80 bf41 c0af c1bf c2 c241 c3c3a9 e0 e080 e08080 e0a0 e0a041 e0a080 ed9fbf
eda080 edbfbf ee8080 e282 e28241 e2e282ac efbfbd efbfbf f0 f08f8080 f0908080 f09f f09f98 f09f9841 f09ff09f9880 f0808080
f48fbfbf f4908080 f5808080 fe ff41ff f88080808041 e6ad 41f09f9880c3a9e282ac42 e38193e38293e381ab 61e282f09f98c362
f09f988041f09f98 c3a9cc81"""

# A byte of each kind that the decoder tells apart, and the edges of each range.
ALPHABET = bytes.fromhex("417f808f909fa0bfc0c1c2dfe0e1ecedeeeff0f1f3f4f5ff")


def decoded(data: bytes) -> list[bytes]:
    """The UTF-8 of what each byte completes, and of what the end does."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    return [decoder.decode(bytes([byte])).encode() for byte in data] + [decoder.decode(b"", True).encode()]


def literal(data: bytes) -> str:
    return '"' + "".join(chr(b) if 32 <= b < 127 and b not in b'"\\' else f"\\{b:03o}" for b in data) + '"sv'


def main() -> None:
    for sample in SAMPLES.split():
        data = bytes.fromhex(sample)
        print(f"    {{{literal(data)}, {literal(b''.join(decoded(data)))}}},")
    digest = 0xCBF29CE484222325  # FNV-1a
    for size in range(1, 5):
        for letters in itertools.product(ALPHABET, repeat=size):
            # CPython alone waits for a third byte after the two that begin a surrogate, which its surrogatepass handler needs.
            early = b"\xed\xa0" in bytes(letters) or b"\xed\xbf" in bytes(letters)
            for byte in (b"" if early else b"\xfe").join(decoded(bytes(letters))) + b"\xff":
                digest = (digest ^ byte) * 0x100000001B3 % 2**64
    print(f"{digest:#x}")


if __name__ == "__main__":
    main()
