"""Rewrite a GGUF file's 5-bit tensors in 4 bits: OpenVINO GenAI reads no 5-bit ones.

    python bench/peers/gguf_for_openvino.py model.gguf OUT.gguf

Q5_0 and Q5_1 tensors are dequantised and rounded to Q4_1 (blocks of 32, scale and minimum); all
others, and the metadata, are copied as they are. Runs in specedge's environment, with its `export`
extra.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import gguf

FIVE_BITS = {gguf.GGMLQuantizationType.Q5_0, gguf.GGMLQuantizationType.Q5_1}
FOUR_BITS = gguf.GGMLQuantizationType.Q4_1
# The writer sets these itself.
OWN = {"GGUF.version", "GGUF.tensor_count", "GGUF.kv_count", "general.architecture"}


def copy_metadata(reader: gguf.GGUFReader, writer: gguf.GGUFWriter) -> None:
    for name, field in reader.fields.items():
        if name in OWN:
            continue
        kind, *parts = field.types
        item = parts[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), kind, sub_type=item)


def copy_tensors(reader: gguf.GGUFReader, writer: gguf.GGUFWriter) -> int:
    """Add every tensor, the 5-bit ones rounded; how many those were."""
    rounded = 0
    for tensor in reader.tensors:
        kind, data = tensor.tensor_type, tensor.data
        if kind in FIVE_BITS:
            data = gguf.quants.quantize(gguf.quants.dequantize(data, kind), FOUR_BITS)
            kind = FOUR_BITS
            rounded += 1
        writer.add_tensor(tensor.name, data, raw_dtype=kind)
    return rounded


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    reader = gguf.GGUFReader(given.model)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(given.out, architecture)
    copy_metadata(reader, writer)
    rounded = copy_tensors(reader, writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    print(f"{given.out}: {rounded} of {len(reader.tensors)} tensors rounded to {FOUR_BITS.name}")


if __name__ == "__main__":
    main()
