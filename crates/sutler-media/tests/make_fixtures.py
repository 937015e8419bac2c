"""Writes the images under tests/data and, beside each, the RGB pixels that Pillow makes of it.

Run it with Pillow 13 and with `cjpeg` and `jpegtran` of libjpeg-turbo on the path:

    python crates/sutler-media/tests/make_fixtures.py

What it writes is committed, so the tests need neither. A second run writes the same bytes given the same versions.
"""

from __future__ import annotations

import random
import shutil
import struct
import subprocess
from io import BytesIO
from pathlib import Path

from PIL import Image, features

DATA = Path(__file__).parent / "data"
HOSTILE = DATA / "hostile"


def picture(width: int, height: int, seed: int = 7) -> Image.Image:
    """Gradients, edges and noise: something in every frequency band, and strong colour at block borders."""
    rng = random.Random(seed)
    pixels = bytearray()
    for y in range(height):
        for x in range(width):
            checks = 255 if (x // 5 + y // 7) % 2 else 0
            noise = rng.randrange(64)
            pixels += bytes(((x * 255 // width + noise) // 2, checks, (y * 255 // height + 2 * noise) // 3))
    return Image.frombytes("RGB", (width, height), bytes(pixels))


def jpeg(image: Image.Image, **options: object) -> bytes:
    stream = BytesIO()
    image.save(stream, "JPEG", **options)  # type: ignore[arg-type]
    return stream.getvalue()


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    stream = BytesIO()
    image.save(stream, kind, **options)  # type: ignore[arg-type]
    return stream.getvalue()


def write(name: str, data: bytes) -> None:
    """Writes the file and Pillow's pixels."""
    (DATA / name).write_bytes(data)
    with Image.open(BytesIO(data)) as image:
        (DATA / name).with_suffix(".rgb").write_bytes(image.convert("RGB").tobytes())


def cjpeg(image: Image.Image, *options: str) -> bytes:
    kind = "PPM"
    return subprocess.run(
        ["cjpeg", *options], input=encoded(image, kind), stdout=subprocess.PIPE, check=True
    ).stdout


def without_marker(data: bytes, marker: int) -> bytes:
    """Drops the segments with this marker from the headers of a JPEG."""
    out, at = bytearray(data[:2]), 2
    while data[at + 1] != 0xDA:
        length = 2 + struct.unpack(">H", data[at + 2 : at + 4])[0]
        if data[at + 1] != marker:
            out += data[at : at + length]
        at += length
    return bytes(out + data[at:])


def adobe(transform: int) -> bytes:
    return b"\xff\xee\x00\x0eAdobe\x00\x64\x00\x00\x00\x00" + bytes([transform])


def jpegs() -> None:
    small = picture(23, 19)
    for name, subsampling in (("444", 0), ("422", 1), ("420", 2)):
        write(f"jpeg_{name}.jpg", jpeg(small, quality=88, subsampling=subsampling))
    write("jpeg_411.jpg", cjpeg(small, "-sample", "4x1", "-quality", "85"))
    write("jpeg_440.jpg", cjpeg(small, "-sample", "1x2", "-quality", "85"))
    write("jpeg_grey.jpg", jpeg(small.convert("L"), quality=80))
    write("jpeg_progressive.jpg", jpeg(small, quality=75, progressive=True))
    write("jpeg_progressive_grey.jpg", jpeg(small.convert("L"), quality=75, progressive=True))
    write("jpeg_restart.jpg", jpeg(small, quality=90, restart_marker_blocks=2))
    write("jpeg_arithmetic.jpg", cjpeg(small, "-arithmetic", "-quality", "80"))
    write("jpeg_arithmetic_progressive.jpg", cjpeg(small, "-arithmetic", "-progressive", "-quality", "80"))
    write("jpeg_rgb.jpg", jpeg(small, quality=85, keep_rgb=True))
    write("jpeg_rgb_by_component_ids.jpg", without_marker(jpeg(small, quality=85, keep_rgb=True), 0xEE))
    cmyk = small.convert("CMYK")
    # Some black, or the conversion would not be tried.
    cmyk = Image.merge("CMYK", (*cmyk.split()[:3], small.convert("L").point(lambda v: v // 2)))
    write("jpeg_cmyk.jpg", jpeg(cmyk, quality=85))
    write("jpeg_cmyk_without_adobe.jpg", without_marker(jpeg(cmyk, quality=85), 0xEE))
    write("jpeg_cmyk_progressive.jpg", jpeg(cmyk, quality=85, progressive=True))
    plain = without_marker(jpeg(cmyk, quality=85), 0xEE)
    write("jpeg_ycck.jpg", plain[:2] + adobe(2) + plain[2:])
    # Motion JPEG leaves the standard Huffman tables out.
    write("jpeg_without_huffman_tables.jpg", without_marker(jpeg(small, quality=85), 0xC4))
    write("jpeg_with_trailer.jpg", jpeg(small, quality=70) + b"\x00" * 300 + b"trailer")
    write("jpeg_with_fill_bytes.jpg", (data := jpeg(small, quality=70))[:2] + b"\xff" * 5 + data[2:])
    # Two tables-only scans short of a full progression: libjpeg smooths what is missing.
    write("jpeg_unfinished_progression.jpg", cjpeg_scans(small, "0,1,2: 0-0, 0, 1;\n0: 1-5, 0, 2;\n"))
    # Wide and high enough that a crop has whole blocks on every side.
    large = picture(149, 117)
    for name, subsampling in (("444", 0), ("422", 1), ("420", 2)):
        (DATA / f"crop_{name}.jpg").write_bytes(jpeg(large, quality=35, subsampling=subsampling))
    (DATA / "crop_440.jpg").write_bytes(cjpeg(large, "-sample", "1x2", "-quality", "35"))
    (DATA / "crop_411.jpg").write_bytes(cjpeg(large, "-sample", "4x1", "-quality", "35"))
    (DATA / "crop_grey.jpg").write_bytes(jpeg(large.convert("L"), quality=35))
    (DATA / "crop_progressive.jpg").write_bytes(jpeg(large, quality=35, progressive=True))
    (DATA / "crop_restart.jpg").write_bytes(jpeg(large, quality=35, restart_marker_blocks=3))
    (DATA / "crop_arithmetic.jpg").write_bytes(cjpeg(large, "-arithmetic", "-quality", "35"))
    (DATA / "crop_smoothed.jpg").write_bytes(
        cjpeg_scans(large, "0,1,2: 0-0, 0, 1;\n0: 1-5, 0, 2;\n")
    )


def cjpeg_scans(image: Image.Image, scans: str) -> bytes:
    script = DATA / "scans.txt"
    script.write_text(scans)
    try:
        return cjpeg(image, "-quality", "80", "-scans", str(script))
    finally:
        script.unlink()


def hostile_jpegs() -> None:
    whole = jpeg(picture(23, 19), quality=80)
    scan = whole.index(b"\xff\xda")
    for name, length in (
        ("magic_only", 3),
        ("in_tables", 100),
        ("before_scan", scan),
        ("at_scan", scan + 14),
        ("half", (scan + len(whole)) // 2),
        ("last_bytes", len(whole) - 12),
    ):
        (HOSTILE / f"truncated_{name}.jpg").write_bytes(whole[:length])
    progressive = jpeg(picture(23, 19), quality=80, progressive=True)
    (HOSTILE / "truncated_progressive.jpg").write_bytes(progressive[: len(progressive) * 2 // 3])
    frame = whole.index(b"\xff\xc0")

    def patched(offset: int, value: bytes) -> bytes:
        return whole[: frame + offset] + value + whole[frame + offset + len(value) :]

    (HOSTILE / "claims_65535_squared.jpg").write_bytes(patched(5, b"\xff\xff\xff\xff"))
    (HOSTILE / "zero_height.jpg").write_bytes(patched(5, b"\x00\x00"))
    (HOSTILE / "twelve_bit.jpg").write_bytes(patched(4, b"\x0c"))
    (HOSTILE / "two_components.jpg").write_bytes(patched(9, b"\x02"))
    (HOSTILE / "sampling_factor_nine.jpg").write_bytes(patched(11, b"\x99"))
    (HOSTILE / "hierarchical.jpg").write_bytes(patched(1, b"\xc5"))
    (HOSTILE / "two_frames.jpg").write_bytes(
        whole[:scan] + whole[frame : frame + 2 + struct.unpack(">H", whole[frame + 2 : frame + 4])[0]] + whole[scan:]
    )
    (HOSTILE / "segment_of_length_zero.jpg").write_bytes(whole[:2] + b"\xff\xe1\x00\x00" + whole[2:])
    (HOSTILE / "scan_bomb.jpg").write_bytes(scan_bomb())
    # Damaged in the middle of the scan: libjpeg warns and goes on, and so does Pillow.
    damaged = bytearray(jpeg(picture(23, 19), quality=90))
    middle = (damaged.index(b"\xff\xda") + len(damaged)) // 2
    damaged[middle : middle + 24] = b"\xff\x00" * 12
    write_damaged("damaged_scan.jpg", bytes(damaged))
    # The image ends in the middle of the scan, properly marked.
    write_damaged("early_end.jpg", whole[: (scan + len(whole)) // 2] + b"\xff\xd9")


def write_damaged(name: str, data: bytes) -> None:
    (HOSTILE / name).write_bytes(data)
    with Image.open(BytesIO(data)) as image:
        (HOSTILE / name).with_suffix(".rgb").write_bytes(image.convert("RGB").tobytes())


def scan_bomb() -> bytes:
    """A progressive file that refines the same bit plane two hundred times."""
    data = jpeg(picture(16, 16), quality=50, progressive=True)
    end = len(data) - 2
    last_scan = data.rindex(b"\xff\xda")
    return data[:end] + data[last_scan:end] * 200 + data[end:]


def main() -> None:
    assert features.version("pil").startswith("13."), "the references are those of Pillow 13"
    shutil.rmtree(DATA, ignore_errors=True)
    HOSTILE.mkdir(parents=True)
    jpegs()
    hostile_jpegs()
    total = sum(path.stat().st_size for path in DATA.rglob("*") if path.is_file())
    print(f"{total} bytes in {sum(1 for path in DATA.rglob('*') if path.is_file())} files")


if __name__ == "__main__":
    main()
