"""Small trees of every layout, in their true formats and with their quirks."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

WNIDS = ("n01443537", "n01629819", "n01641577")
WORDS = {"n01443537": "goldfish, Carassius auratus", "n01629819": "crane", "n01641577": "crane, Grus grus"}


def pixels(seed: int, size: tuple[int, int] = (64, 64), channels: int = 3) -> np.ndarray:
    """Smooth noise, (h, w, c): what a JPEG keeps well."""
    small = np.random.default_rng(seed).integers(0, 256, (8, 8, channels), dtype=np.uint8)
    images = [Image.fromarray(small[..., c]).resize((size[1], size[0]), Image.Resampling.BICUBIC) for c in range(channels)]
    return np.stack([np.asarray(image) for image in images], -1)


def encoded(seed: int, size: tuple[int, int] = (64, 64), mode: str = "RGB", kind: str = "JPEG") -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels(seed, size)).convert(mode).save(out, kind)
    return out.getvalue()


def write(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def tiny(root: Path, train: int = 4, test: int = 2) -> Path:
    """`tiny-imagenet-200` with three classes: boxes beside the images, gray and CMYK ones among them, unlabelled ones in `test`."""
    tree = root / "tiny-imagenet-200"
    for c, wnid in enumerate(WNIDS):
        for i in range(train):
            mode = {0: "L", 1: "CMYK"}.get(i, "RGB") if c == 0 else "RGB"
            write(tree / "train" / wnid / "images" / f"{wnid}_{i}.JPEG", encoded(100 * c + i, mode=mode))
        boxes = "".join(f"{wnid}_{i}.JPEG\t0\t10\t63\t58\n" for i in range(train))
        write(tree / "train" / wnid / f"{wnid}_boxes.txt", boxes.encode())
    lines: list[str] = []
    for i in range(test * len(WNIDS)):
        wnid = WNIDS[(i + 1) % len(WNIDS)]
        write(tree / "val" / "images" / f"val_{i}.JPEG", encoded(1000 + i))
        lines.append(f"val_{i}.JPEG\t{wnid}\t0\t32\t44\t62\n")
    write(tree / "val" / "val_annotations.txt", "".join(lines).encode())
    write(tree / "test" / "images" / "test_0.JPEG", encoded(5))
    write(tree / "wnids.txt", "".join(f"{wnid}\n" for wnid in reversed(WNIDS)).encode())
    other = {"n00001740": "entity", **WORDS}
    write(tree / "words.txt", "".join(f"{wnid}\t{words}\n" for wnid, words in other.items()).encode())
    return tree


def imagenet(root: Path, classes: int = 103, train: int = 1, test: int = 1, size: tuple[int, int] = (40, 52)) -> Path:
    """`imagenet` with images of several sizes, more classes than a hundred, and a file beside them."""
    tree = root / "imagenet"
    names = [f"n{1440000 + 37 * c:08d}" for c in range(classes)]
    for c, name in enumerate(names):
        for part, n in ("train", train), ("val", test):
            for i in range(n):
                file = f"{name}_{i}.JPEG" if part == "train" else f"ILSVRC2012_val_{c * test + i:08d}.JPEG"
                write(tree / part / name / file, encoded(1000 * c + i, (size[0] + i, size[1] + c % 3)))
    write(tree / "LOC_synset_mapping.txt", b"n01440764 tench, Tinca tinca\n")
    return tree


def folder(root: Path, classes: tuple[str, ...] = ("ape", "bee", "cat"), train: int = 4, test: int = 2, size: int = 16) -> Path:
    """`train` and `test` with a folder for each class, in whatever format."""
    kinds = [("png", "PNG"), ("JPG", "JPEG"), ("BMP", "BMP"), ("webp", "WEBP"), ("gif", "GIF"), ("tif", "TIFF")]
    for part, n in ("train", train), ("test", test):
        for c, name in enumerate(classes):
            for i in range(n):
                suffix, kind = kinds[i % len(kinds)]
                seed = 100 * c + i + (50 if part == "test" else 0)
                write(root / part / name / f"{i}.{suffix}", encoded(seed, (size, size), kind=kind))
    return root


def hugging(root: Path, shards: int = 2, rows: int = 6, names: tuple[str, ...] = ("no", "yes"), test: str = "test") -> Path:
    """Shards as Hugging Face writes them: a struct of bytes and path, whole labels, and what they mean beside the schema."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    features = {"image": {"_type": "Image"}, "label": {"names": list(names), "_type": "ClassLabel"}}
    meta = {"huggingface": json.dumps({"info": {"features": features}})}
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    schema = pa.schema([("image", kind), ("label", pa.int64())], metadata=meta)
    for part, files in ("train", shards), (test, 1):
        for s in range(files):
            images: list[Any] = []
            for i in range(rows):
                images.append(
                    {"bytes": encoded(100 * s + i + (1000 if part == test else 0), (16, 16), kind="PNG"), "path": f"{i}.png"}
                )
            table = pa.Table.from_arrays(
                [pa.array(images, kind), pa.array([i % len(names) for i in range(rows)], pa.int64())], schema=schema
            )
            (root / "data").mkdir(parents=True, exist_ok=True)
            pq.write_table(table, root / "data" / f"{part}-{s:05d}-of-{files:05d}.parquet", row_group_size=4)
    return root
