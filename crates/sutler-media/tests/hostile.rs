//! Files that lie, stop early or are something else: each is refused, for the right reason, before it costs memory.

mod support;

use proptest::prelude::*;
use support::{data, decode_whole, fixture, images};
use sutler_media::{DecodeError, Decoder, Limits, Pixels, Rect, Request, Scale, probe};

/// Files up to this have hardly more than headers, in which every bit means something.
const SMALL_FILE_BYTES: usize = 400;

/// The kind of error that every hostile file ends in; those with a `.rgb` beside them decode with warnings.
const VERDICTS: [(&str, &str); 38] = [
    ("claims_16383_squared.webp", "too_large"),
    ("claims_65000_squared.bmp", "too_large"),
    ("claims_65000_squared.png", "too_large"),
    ("claims_65000_squared.tif", "too_large"),
    ("claims_65535_squared.gif", "too_large"),
    ("claims_65535_squared.jpg", "too_large"),
    ("damaged_scan.jpg", "decoded"),
    ("directory_loop.tif", "corrupt"),
    ("early_end.jpg", "decoded"),
    ("empty.jpg", "empty"),
    ("hierarchical.jpg", "unsupported"),
    ("sampling_factor_nine.jpg", "corrupt"),
    ("scan_bomb.jpg", "unsupported"),
    ("segment_of_length_zero.jpg", "decoded"),
    ("text.jpg", "unrecognised"),
    ("truncated_at_scan.jpg", "truncated"),
    ("truncated_before_scan.jpg", "truncated"),
    ("truncated_half.bmp", "truncated"),
    ("truncated_half.gif", "truncated"),
    ("truncated_half.jpg", "truncated"),
    ("truncated_half.png", "truncated"),
    ("truncated_half.tif", "truncated"),
    ("truncated_half.webp", "truncated"),
    ("truncated_header.bmp", "truncated"),
    ("truncated_header.gif", "truncated"),
    ("truncated_header.png", "truncated"),
    ("truncated_header.tif", "truncated"),
    ("truncated_header.webp", "truncated"),
    ("truncated_in_tables.jpg", "truncated"),
    ("truncated_last_bytes.jpg", "truncated"),
    ("truncated_magic_only.jpg", "truncated"),
    ("truncated_progressive.jpg", "truncated"),
    ("twelve_bit.jpg", "unsupported"),
    ("two_components.jpg", "unsupported"),
    ("two_frames.jpg", "corrupt"),
    ("without_palette.gif", "corrupt"),
    ("wrong_checksum.png", "corrupt"),
    ("zero_height.jpg", "corrupt"),
];

#[test]
fn every_hostile_file_gets_its_verdict() {
    let mut wrong = Vec::new();
    for name in images(&data().join("hostile")) {
        let verdict = match decode_whole(&fixture(&format!("hostile/{name}"))) {
            Ok(_) => "decoded",
            Err(error) => error.kind(),
        };
        match VERDICTS.iter().find(|(file, _)| *file == name) {
            Some((_, expected)) if *expected == verdict => {}
            Some((_, expected)) => wrong.push(format!("{name}: {verdict}, not {expected}")),
            None => wrong.push(format!("{name}: {verdict}, and no verdict was expected")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn limits_are_named_with_the_size_and_the_remedy() {
    let bytes = fixture("jpeg_420.jpg");
    let error = probe(&bytes, &Limits { pixels_max: 100, ..Limits::default() }).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the image claims to be 23 x 19 pixels, 437 in all, and the limit is 100; \
         raise pixels_max if the size is real, or leave the file out"
    );
    let error = probe(&bytes, &Limits { bytes_max: 100, ..Limits::default() }).unwrap_err();
    assert_eq!(error.kind(), "too_long");
}

#[test]
fn a_region_outside_the_image_is_refused() {
    let bytes = fixture("jpeg_420.jpg");
    let header = probe(&bytes, &Limits::default()).unwrap();
    let mut decoder = Decoder::new(Limits::default());
    for region in [
        Rect { x: 0, y: 0, width: 0, height: 1 },
        Rect { x: 20, y: 0, width: 4, height: 1 },
        Rect { x: 0, y: u32::MAX, width: 1, height: u32::MAX },
    ] {
        let request = Request { region, scale: Scale::Full };
        let error = decoder.decode(&bytes, &header, &request, &mut Pixels::default()).unwrap_err();
        assert!(matches!(error, DecodeError::Region { .. }), "{error}");
    }
}

#[test]
fn the_decoder_keeps_to_its_own_limits_too() {
    let bytes = fixture("png_RGB.png");
    let header = probe(&bytes, &Limits::default()).unwrap();
    let mut decoder = Decoder::new(Limits { pixels_max: 10, ..Limits::default() });
    let error =
        decoder.decode(&bytes, &header, &Request::whole(&header), &mut Pixels::default()).unwrap_err();
    assert_eq!(error.kind(), "too_large");
}

#[test]
fn a_decoder_may_move_to_another_thread() {
    let bytes = fixture("jpeg_420.jpg");
    let mut decoder = Decoder::new(Limits::default());
    let warnings = std::thread::spawn(move || {
        let header = probe(&bytes, &Limits::default()).unwrap();
        decoder.decode(&bytes, &header, &Request::whole(&header), &mut Pixels::default()).unwrap().warnings
    });
    assert_eq!(warnings.join().unwrap(), 0);
}

/// Decodes what may be nonsense: it ends in an error or in pixels of the size that the header gave.
fn survives(decoder: &mut Decoder, bytes: &[u8]) {
    // The limit is small so that a flipped size does not turn the test into one of the allocator.
    let limits = Limits { pixels_max: 1 << 20, ..Limits::default() };
    let Ok(header) = probe(bytes, &limits) else { return };
    let mut pixels = Pixels::default();
    let part = Rect { x: header.width / 3, y: header.height / 3, width: 1, height: 1 };
    for region in [Rect::whole(header.width, header.height), part] {
        for scale in [Scale::Full, Scale::Quarter] {
            let request = Request { region, scale };
            if let Ok(decoded) = decoder.decode(bytes, &header, &request, &mut pixels) {
                let used = if header.can_scale(scale) { scale } else { Scale::Full };
                assert!(decoded.covered.contains(&Request { region, scale: used }.scaled_region(&header)));
                let Rect { width, height, .. } = decoded.covered;
                assert_eq!((pixels.width, pixels.height), (width, height));
                assert_eq!(pixels.data.len(), width as usize * height as usize * 3);
            }
        }
    }
}

#[test]
fn no_single_flipped_bit_of_a_small_file_panics() {
    let mut decoder = Decoder::new(Limits { pixels_max: 1 << 20, ..Limits::default() });
    for name in images(&data()) {
        let mut bytes = fixture(&name);
        if bytes.len() > SMALL_FILE_BYTES {
            continue;
        }
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            survives(&mut decoder, &bytes);
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn flipped_and_missing_bytes_never_panic(
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut decoder = Decoder::new(Limits { pixels_max: 1 << 20, ..Limits::default() });
        for name in images(&data()) {
            let mut bytes = fixture(&name);
            for (place, value) in &flips {
                let place = place.index(bytes.len());
                bytes[place] ^= value;
            }
            if let Some(cut) = cut {
                bytes.truncate(cut.index(bytes.len()));
            }
            survives(&mut decoder, &bytes);
        }
    }
}
