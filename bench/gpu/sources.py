"""The model that a check decodes, or that a kit is cut from."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path

from gpu.pieces import KitError, replace

CONFIG = "smollm2"  # names the source and its sha256
LAYERS, EMBEDDING = 16, "Q4_0"
"""What a kit has of it; the bounds of `right` are for a model that deep."""


def of_config(name: str) -> Path:
    """The GGUF file of a config's target, out of the cache; fetched if it is not there.

    Raises:
        KitError: there is no such config, its source is no package, or it cannot be fetched.
    """
    from specedge.config import load_config
    from specedge.errors import SpecedgeError
    from specedge.export.sources import open_source
    from specedge.export.sources.cache import cache_folder, cached
    from specedge.progress import Silent

    try:
        target = load_config(name).target
        open_source(target.source, sha256=target.sha256).tensors.close()
        found = cached(cache_folder(), target.source, Silent())
    except SpecedgeError as error:
        raise KitError(str(error)) from error
    if found is None:
        raise KitError(
            f"{name}: expected a source that is kept in the cache, found {target.source}; give "
            "--source FILE.gguf"
        )
    return found.path


def truncate(source: Path, output: Path, layers: int, embedding: str = "keep") -> None:
    """Write the first `layers` blocks of a GGUF file; blocks stay as they are stored.

    Args:
        embedding: a quantisation type by gguf's name that the embedding table is packed to, or
            "keep".

    Raises:
        KitError: the file has fewer layers than asked for.
    """
    import gguf

    reader = gguf.GGUFReader(source)
    fields = {name: field for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    architecture = fields.pop("general.architecture").contents()
    has = fields[f"{architecture}.block_count"].contents()
    if not 1 <= layers <= has:
        raise KitError(f"{source}: expected 1..{has} layers, found {layers}; lower --layers")

    def write(path: Path) -> None:
        writer = gguf.GGUFWriter(path, architecture)
        for name, field in fields.items():
            value = layers if name == f"{architecture}.block_count" else field.contents()
            inner = field.types[1] if len(field.types) > 1 else None
            writer.add_key_value(name, value, field.types[0], sub_type=inner)
        for tensor in reader.tensors:
            data, kind = tensor.data, tensor.tensor_type
            if tensor.name.startswith("blk.") and int(tensor.name.split(".")[1]) >= layers:
                continue
            if tensor.name == "token_embd.weight" and embedding != "keep":
                kind = gguf.GGMLQuantizationType[embedding]
                values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
                data = gguf.quants.quantize(values, kind)
            writer.add_tensor(tensor.name, data, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()

    replace(output, write)


def unpacked(source: Path, work: Path) -> Path:
    """The model itself; a .gz is unpacked into `work`.

    Raises:
        OSError, EOFError, zlib.error: what is packed is damaged, or the disk is full.
    """
    if source.suffix != ".gz":
        return source
    target = work / source.stem
    if not target.exists():
        temporary = target.with_name(f".{target.name}")
        with gzip.open(source, "rb") as packed, temporary.open("wb") as file:
            shutil.copyfileobj(packed, file, 1 << 20)
        temporary.rename(target)
    return target


def cut(work: Path) -> Path:
    """The model that a kit has, out of the cache into `work`; what is there already is kept.

    Raises:
        KitError: see `of_config`.
    """
    target = work / "model.gguf"
    if not target.exists():
        truncate(of_config(CONFIG), target, LAYERS, EMBEDDING)
    return target
