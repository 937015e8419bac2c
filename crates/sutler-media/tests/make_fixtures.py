"""Writes the images under tests/data and, beside each, the RGB pixels that Pillow makes of it.

Run it with Pillow 13 and with `cjpeg` of libjpeg-turbo on the path:

    python crates/sutler-media/tests/make_fixtures.py

What it writes is committed, so the tests need neither. A second run with the same versions writes the same
bytes.
"""

from __future__ import annotations

import random
import shutil
import struct
import subprocess
import zlib
from io import BytesIO
from pathlib import Path

from PIL import Image, features

DATA = Path(__file__).parent / "data"
HOSTILE = DATA / "hostile"
SMALL = 23, 19  # odd, and more than one block of 16 each way
TINY = 13, 11  # for formats without blocks


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


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    stream = BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def jpeg(image: Image.Image, **options: object) -> bytes:
    return encoded(image, "JPEG", **options)


def write(name: str, data: bytes) -> None:
    """Writes the file and Pillow's pixels."""
    (DATA / name).write_bytes(data)
    with Image.open(BytesIO(data)) as image:
        (DATA / name).with_suffix(".rgb").write_bytes(image.convert("RGB").tobytes())


def cjpeg(image: Image.Image, *options: str) -> bytes:
    netpbm = encoded(image, "PPM")
    return subprocess.run(["cjpeg", *options], input=netpbm, stdout=subprocess.PIPE, check=True).stdout


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
    small = picture(*SMALL)
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
    # Two scans of a progression that is never finished: libjpeg smooths what is missing.
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
    (DATA / "crop_smoothed.jpg").write_bytes(cjpeg_scans(large, "0,1,2: 0-0, 0, 1;\n0: 1-5, 0, 2;\n"))


def cjpeg_scans(image: Image.Image, scans: str) -> bytes:
    script = DATA / "scans.txt"
    script.write_text(scans)
    try:
        return cjpeg(image, "-quality", "80", "-scans", str(script))
    finally:
        script.unlink()


def hostile_jpegs() -> None:
    whole = jpeg(picture(*SMALL), quality=80)
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
    progressive = jpeg(picture(*SMALL), quality=80, progressive=True)
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
        whole[:scan]
        + whole[frame : frame + 2 + struct.unpack(">H", whole[frame + 2 : frame + 4])[0]]
        + whole[scan:]
    )
    (HOSTILE / "segment_of_length_zero.jpg").write_bytes(whole[:2] + b"\xff\xe1\x00\x00" + whole[2:])
    (HOSTILE / "scan_bomb.jpg").write_bytes(scan_bomb())
    # Damaged in the middle of the scan: libjpeg warns and goes on, and so does Pillow.
    damaged = bytearray(jpeg(picture(*SMALL), quality=90))
    middle = (damaged.index(b"\xff\xda") + len(damaged)) // 2
    damaged[middle : middle + 24] = b"\xff\x00" * 12
    write("hostile/damaged_scan.jpg", bytes(damaged))
    # The image ends in the middle of the scan, properly marked.
    write("hostile/early_end.jpg", whole[: (scan + len(whole)) // 2] + b"\xff\xd9")


def scan_bomb() -> bytes:
    """A progressive file that refines the same bit plane two hundred times."""
    data = jpeg(picture(16, 16), quality=50, progressive=True)
    end = len(data) - 2
    last_scan = data.rindex(b"\xff\xda")
    return data[:end] + data[last_scan:end] * 200 + data[end:]


def png_chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(
    width: int,
    height: int,
    depth: int,
    colour: int,
    rows: list[list[int]],
    *,
    before_data: bytes = b"",
    interlaced: bool = False,
) -> bytes:
    """Packs rows of samples as they are; Pillow writes neither interlaced files nor most depths."""
    channels = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colour]

    def packed(samples: list[int]) -> bytes:
        bits = "".join(format(sample, f"0{depth}b") for sample in samples)
        bits += "0" * (-len(bits) % 8)
        return bytes(int(bits[i : i + 8], 2) for i in range(0, len(bits), 8))

    raw = b""
    adam7 = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
    for x0, y0, dx, dy in adam7 if interlaced else ((0, 0, 1, 1),):
        if x0 >= width:
            continue
        for y in range(y0, height, dy):
            row = [rows[y][x * channels + c] for x in range(x0, width, dx) for c in range(channels)]
            raw += b"\0" + packed(row)
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, int(interlaced))
    return (
        b"\x89PNG\r\n\x1a\n"
        + png_chunk(b"IHDR", header)
        + before_data
        + png_chunk(b"IDAT", zlib.compress(raw))
        + png_chunk(b"IEND", b"")
    )


def samples(width: int, height: int, channels: int, depth: int, below: int | None = None) -> list[list[int]]:
    rng = random.Random(depth * 10 + channels)
    top = below or 1 << depth
    return [[rng.randrange(top) for _ in range(width * channels)] for _ in range(height)]


def pngs() -> None:
    small = picture(*TINY)
    alpha = picture(*TINY, seed=9).convert("L")
    for mode in ("1", "L", "P", "RGB"):
        write(f"png_{mode}.png", encoded(small.convert(mode), "PNG"))
    write("png_LA.png", encoded(Image.merge("LA", (small.convert("L"), alpha)), "PNG"))
    write("png_RGBA.png", encoded(Image.merge("RGBA", (*small.split(), alpha)), "PNG"))
    write("png_P_transparent.png", encoded(small.quantize(16), "PNG", transparency=bytes(range(0, 160, 10))))
    write("png_RGB_transparent.png", encoded(small, "PNG", transparency=(0, 0, 0)))
    width, height = TINY
    for depth in (1, 2, 4, 8, 16):
        write(f"png_grey_{depth}.png", png(width, height, depth, 0, samples(width, height, 1, depth)))
    # Grey whose high byte is zero shows how 16 bits become 8.
    write("png_grey_16_dark.png", png(width, height, 16, 0, samples(width, height, 1, 16, below=600)))
    write(
        "png_grey_16_transparent.png",
        png(width, height, 16, 0, samples(width, height, 1, 16), before_data=png_chunk(b"tRNS", b"\0\7")),
    )
    write("png_grey_alpha_16.png", png(width, height, 16, 4, samples(width, height, 2, 16)))
    write("png_rgb_16.png", png(width, height, 16, 2, samples(width, height, 3, 16)))
    write("png_rgba_16.png", png(width, height, 16, 6, samples(width, height, 4, 16)))
    for depth in (1, 2, 4, 8):
        palette = bytes(random.Random(depth).randrange(256) for _ in range(3 << depth))
        rows = samples(width, height, 1, depth)
        write(
            f"png_palette_{depth}.png",
            png(width, height, depth, 3, rows, before_data=png_chunk(b"PLTE", palette)),
        )
    # Colours that the palette does not have.
    rows = samples(width, height, 1, 8)
    write(
        "png_palette_short.png",
        png(width, height, 8, 3, rows, before_data=png_chunk(b"PLTE", bytes(range(30)))),
    )
    for depth, colour, channels in ((1, 0, 1), (8, 2, 3), (16, 6, 4)):
        rows = samples(width, height, channels, depth)
        write(
            f"png_interlaced_{depth}_{channels}.png", png(width, height, depth, colour, rows, interlaced=True)
        )
    write("png_one_pixel.png", encoded(small.crop((3, 3, 4, 4)), "PNG"))


def webps() -> None:
    small = picture(*SMALL)
    alpha = picture(*SMALL, seed=9).convert("L")
    with_alpha = Image.merge("RGBA", (*small.split(), alpha))
    write("webp_lossy.webp", encoded(small, "WEBP", quality=70))
    write("webp_lossless.webp", encoded(small, "WEBP", lossless=True))
    write("webp_lossy_alpha.webp", encoded(with_alpha, "WEBP", quality=70))
    write("webp_lossless_alpha.webp", encoded(with_alpha, "WEBP", lossless=True, exact=True))
    write("webp_with_metadata.webp", encoded(small, "WEBP", quality=60, exif=b"Exif\0\0MM\0*\0\0\0\x08\0\0"))
    frames = [picture(*SMALL, seed=seed) for seed in (20, 21)]
    write(
        "webp_animated.webp", encoded(frames[0], "WEBP", save_all=True, append_images=frames[1:], quality=50)
    )
    # A first frame that covers only a part of the canvas.
    animated = bytearray(encoded(with_alpha, "WEBP", save_all=True, append_images=frames[1:], lossless=True))
    canvas = animated.index(b"VP8X") + 12
    animated[canvas : canvas + 6] = (40 - 1).to_bytes(3, "little") + (30 - 1).to_bytes(3, "little")
    frame = animated.index(b"ANMF") + 8
    animated[frame : frame + 6] = (8 // 2).to_bytes(3, "little") + (6 // 2).to_bytes(3, "little")
    write("webp_animated_part.webp", bytes(animated))


def bmp(
    width: int, height: int, bits: int, body: bytes, *, compression: int = 0, tables: bytes = b""
) -> bytes:
    info = struct.pack("<IiiHHIIiiII", 40, width, height, 1, bits, compression, len(body), 0, 0, 0, 0)
    offset = 14 + len(info) + len(tables)
    return b"BM" + struct.pack("<IHHI", offset + len(body), 0, 0, offset) + info + tables + body


def bmps() -> None:
    small = picture(*TINY)
    for mode in ("1", "L", "P", "RGB", "RGBA"):
        write(f"bmp_{mode}.bmp", encoded(small.convert(mode), "BMP"))
    rng = random.Random(5)
    width, height = TINY
    noise = bytes(rng.randrange(256) for _ in range(4 * width * height))
    palette = bytes(rng.randrange(256) for _ in range(4 * 16))
    write("bmp_4_bits.bmp", bmp(width, height, 4, noise[: 8 * height], tables=palette))
    write("bmp_15_bits.bmp", bmp(width, height, 16, noise[: 28 * height]))
    masks = struct.pack("<III", 0xF800, 0x7E0, 0x1F)
    write("bmp_16_bits.bmp", bmp(width, height, 16, noise[: 28 * height], compression=3, tables=masks))
    masks = struct.pack("<III", 0xFF000000, 0xFF0000, 0xFF00)
    write("bmp_32_bits_masks.bmp", bmp(width, height, 32, noise[: 52 * height], compression=3, tables=masks))
    write("bmp_32_bits.bmp", bmp(width, height, 32, noise[: 52 * height]))
    write("bmp_top_down.bmp", bmp(width, -height, 24, noise[: 40 * height]))
    full = bytes(rng.randrange(256) for _ in range(4 * 256))
    runs = bytes(
        [9, 7, 3, 1, 0, 0, 0, 3, 5, 6, 7, 0, 20, 200, 0, 0, 2, 8, 0, 2, 3, 2, 40, 5, 0, 0, 23, 4, 0, 1]
    )
    write("bmp_rle8.bmp", bmp(23, 6, 8, runs, compression=1, tables=full))
    runs = bytes(
        [
            9,
            0x7A,
            3,
            0x1F,
            0,
            0,
            0,
            5,
            0x12,
            0x34,
            0x50,
            0,
            18,
            0xC8,
            0,
            0,
            2,
            0x81,
            0,
            2,
            3,
            2,
            40,
            0x5E,
            0,
            1,
        ]
    )
    write("bmp_rle4.bmp", bmp(23, 5, 4, runs, compression=2, tables=palette))
    core = b"BM" + struct.pack("<IHHI", 0, 0, 0, 26) + struct.pack("<IHHHH", 12, width, height, 1, 24)
    write("bmp_core_header.bmp", core + noise[: 40 * height])


def gifs() -> None:
    small = picture(*TINY)
    write("gif_palette.gif", encoded(small.quantize(60), "GIF"))
    write("gif_grey.gif", encoded(small.convert("L"), "GIF"))
    write("gif_interlaced.gif", encoded(small.quantize(60), "GIF", interlace=1))
    write("gif_transparent.gif", encoded(small.quantize(60), "GIF", transparency=3))
    frames = [picture(*TINY, seed=seed).quantize(32) for seed in (20, 21)]
    write("gif_animated.gif", encoded(frames[0], "GIF", save_all=True, append_images=frames[1:]))
    for name, options in (("", {}), ("_transparent", {"transparency": 5})):
        data = bytearray(encoded(small.quantize(60), "GIF", **options))
        frame = data.index(b",", 13 + 3 * 64)
        data[6:10] = struct.pack("<HH", 40, 30)
        data[frame + 1 : frame + 5] = struct.pack("<HH", 7, 4)
        write(f"gif_small_frame{name}.gif", bytes(data))
    data = bytearray(encoded(small.quantize(60), "GIF"))
    data[6:10] = struct.pack("<HH", 10, 40)
    write("gif_large_frame.gif", bytes(data))
    # No palette at all, which Pillow takes for grey and we refuse; and a palette that is too short.
    data = bytearray(encoded(small.quantize(60), "GIF"))
    colours = 3 * 64
    data[10] &= 0x7F
    (HOSTILE / "without_palette.gif").write_bytes(bytes(data[:13] + data[13 + colours :]))
    data[10] = 0x80 | (data[10] & 0xF8) | 2
    write("gif_short_palette.gif", bytes(data[: 13 + 24] + data[13 + colours :]))


def tiff(order: str, tags: dict[int, list[int]], strips: list[bytes]) -> bytes:
    """An uncompressed TIFF with the strips after the header and one directory at the end."""
    out = bytearray(struct.pack(order + "2sHI", b"II" if order == "<" else b"MM", 42, 0))
    offsets = []
    for strip in strips:
        offsets.append(len(out))
        out += strip + b"\0" * (len(strip) % 2)
    tags = {259: [1], **tags, 273: offsets, 279: [len(strip) for strip in strips]}
    entries = b""
    for tag, values in sorted(tags.items()):
        kind, code = ("I", 4) if tag in (256, 257, 273, 279) else ("H", 3)
        body = struct.pack(order + kind * len(values), *values)
        if len(body) > 4:
            place = struct.pack(order + "I", len(out))
            out += body + b"\0" * (len(body) % 2)
            body = place
        entries += struct.pack(order + "HHI", tag, code, len(values)) + body.ljust(4, b"\0")
    out[4:8] = struct.pack(order + "I", len(out))
    return bytes(out + struct.pack(order + "H", len(tags)) + entries + b"\0\0\0\0")


def tiffs() -> None:
    small = picture(*TINY)
    alpha = picture(*TINY, seed=9).convert("L")
    for mode in ("1", "L", "P", "RGB", "CMYK", "I;16", "I", "F"):
        source = small.convert("L") if mode[0] in "IF" else small
        write(f"tiff_{mode.replace(';', '')}.tif", encoded(source.convert(mode), "TIFF"))
    write("tiff_LA.tif", encoded(Image.merge("LA", (small.convert("L"), alpha)), "TIFF"))
    write("tiff_RGBA.tif", encoded(Image.merge("RGBA", (*small.split(), alpha)), "TIFF"))
    for compression in ("tiff_lzw", "tiff_adobe_deflate", "packbits"):
        write(f"tiff_RGB_{compression}.tif", encoded(small, "TIFF", compression=compression))
    write("tiff_L_lzw.tif", encoded(small.convert("L"), "TIFF", compression="tiff_lzw"))
    write("tiff_1_group4.tif", encoded(small.convert("1"), "TIFF", compression="group4"))
    write("tiff_1_packbits.tif", encoded(small.convert("1"), "TIFF", compression="packbits"))
    write("tiff_RGB_predictor.tif", encoded(small, "TIFF", compression="tiff_lzw", tiffinfo={317: 2}))
    write("tiff_pages.tif", encoded(small, "TIFF", save_all=True, append_images=[small.convert("L")]))
    width, height = TINY
    rng = random.Random(11)
    size = {256: [width], 257: [height], 278: [height]}
    noise = bytes(rng.randrange(256) for _ in range(8 * width * height))
    for order, name in (("<", "II"), (">", "MM")):
        grey16 = {**size, 258: [16], 262: [1], 277: [1]}
        write(f"tiff_grey_16_{name}.tif", tiff(order, grey16, [noise[: 2 * width * height]]))
        rgb16 = {**size, 258: [16] * 3, 262: [2], 277: [3]}
        write(f"tiff_rgb_16_{name}.tif", tiff(order, rgb16, [noise[: 6 * width * height]]))
    write("tiff_rgba_16.tif", tiff("<", {**size, 258: [16] * 4, 262: [2], 277: [4], 338: [2]}, [noise]))
    cmyk16 = {**size, 258: [16] * 4, 262: [5], 277: [4]}
    write("tiff_cmyk_16.tif", tiff("<", cmyk16, [noise]))
    for bits in (1, 2, 4, 8):
        row = (width * bits + 7) // 8
        for photometric in (0, 1):
            tags = {**size, 258: [bits], 262: [photometric], 277: [1]}
            write(f"tiff_grey_{bits}_{photometric}.tif", tiff("<", tags, [noise[: row * height]]))
        palette = [rng.randrange(65536) for _ in range(3 << bits)]
        tags = {**size, 258: [bits], 262: [3], 277: [1], 320: palette}
        write(f"tiff_palette_{bits}.tif", tiff("<", tags, [noise[: row * height]]))
    extra = {**size, 258: [8] * 4, 262: [2], 277: [4]}
    write("tiff_rgb_padded.tif", tiff("<", {**extra, 338: [0]}, [noise[: 4 * width * height]]))
    write("tiff_rgba_premultiplied.tif", tiff("<", {**extra, 338: [1]}, [noise[: 4 * width * height]]))
    planes = [noise[i * width * height : (i + 1) * width * height] for i in range(3)]
    write("tiff_planar.tif", tiff("<", {**size, 258: [8] * 3, 262: [2], 277: [3], 284: [2]}, planes))
    strips = [noise[i : i + 3 * width * 5] for i in range(0, 3 * width * height, 3 * width * 5)]
    strips[-1] = strips[-1][: 3 * width * 2]
    write("tiff_strips.tif", tiff("<", {**size, 258: [8] * 3, 262: [2], 277: [3], 278: [5]}, strips))


def hostile_others() -> None:
    small = picture(*TINY)
    files = {
        "png": encoded(small, "PNG"),
        "webp": encoded(small, "WEBP", quality=70),
        "bmp": encoded(small, "BMP"),
        "gif": encoded(small.quantize(60), "GIF"),
        "tif": encoded(small, "TIFF", compression="tiff_lzw"),
    }
    for kind, data in files.items():
        (HOSTILE / f"truncated_half.{kind}").write_bytes(data[: len(data) // 2])
        (HOSTILE / f"truncated_header.{kind}").write_bytes(data[:15])
    header = struct.pack(">IIBBBBB", 65000, 65000, 8, 2, 0, 0, 0)
    (HOSTILE / "claims_65000_squared.png").write_bytes(b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", header))
    (HOSTILE / "claims_65000_squared.bmp").write_bytes(bmp(65000, 65000, 24, b""))
    gif = bytearray(files["gif"])
    gif[6:10] = b"\xff" * 4
    (HOSTILE / "claims_65535_squared.gif").write_bytes(bytes(gif))
    vp8x = b"VP8X" + struct.pack("<II", 10, 0) + (16382).to_bytes(3, "little") * 2
    (HOSTILE / "claims_16383_squared.webp").write_bytes(
        b"RIFF" + struct.pack("<I", 4 + len(vp8x)) + b"WEBP" + vp8x
    )
    size = {256: [65000], 257: [65000], 278: [65000]}
    claim = tiff("<", {**size, 258: [8] * 3, 262: [2], 277: [3]}, [b"abcd"])
    (HOSTILE / "claims_65000_squared.tif").write_bytes(claim)
    broken = bytearray(files["png"])
    broken[broken.index(b"IDAT") + 20] ^= 0x55
    (HOSTILE / "wrong_checksum.png").write_bytes(bytes(broken))
    loop = bytearray(tiff("<", {256: [4], 257: [4], 278: [4], 258: [8], 262: [1], 277: [1]}, [b"x" * 16]))
    loop[-4:] = loop[4:8]  # the next directory is this one
    (HOSTILE / "directory_loop.tif").write_bytes(bytes(loop))
    (HOSTILE / "text.jpg").write_bytes(b"<html><body>404 Not Found</body></html>")
    (HOSTILE / "empty.jpg").write_bytes(b"")


def main() -> None:
    assert (features.version("pil") or "").startswith("13."), "the references are those of Pillow 13"
    shutil.rmtree(DATA, ignore_errors=True)
    HOSTILE.mkdir(parents=True)
    jpegs()
    hostile_jpegs()
    pngs()
    webps()
    bmps()
    gifs()
    tiffs()
    hostile_others()
    total = sum(path.stat().st_size for path in DATA.rglob("*") if path.is_file())
    print(f"{total} bytes in {sum(1 for path in DATA.rglob('*') if path.is_file())} files")


if __name__ == "__main__":
    main()
