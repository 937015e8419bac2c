//! JPEG: crops are exact, files that end early are refused, damage is counted.

mod support;

use proptest::prelude::*;
use support::{decode_whole, fixture};
use sutler_media::{Decoder, Header, Limits, Pixels, Rect, Request, Scale, probe};

const CROPS: [&str; 10] = [
    "crop_444.jpg",
    "crop_422.jpg",
    "crop_420.jpg",
    "crop_440.jpg",
    "crop_411.jpg",
    "crop_grey.jpg",
    "crop_progressive.jpg",
    "crop_restart.jpg",
    "crop_arithmetic.jpg",
    "crop_smoothed.jpg",
];

const SCALES: [Scale; 4] = [Scale::Full, Scale::Half, Scale::Quarter, Scale::Eighth];

/// The pixels of `region`, which lies inside `covered`, row by row.
fn cut(pixels: &Pixels, covered: &Rect, region: &Rect) -> Vec<u8> {
    assert!(covered.contains(region), "{covered:?} lacks {region:?}");
    assert_eq!(pixels.data.len(), covered.width as usize * covered.height as usize * 3);
    let stride = covered.width as usize * 3;
    let left = (region.x - covered.x) as usize * 3;
    (region.y - covered.y..region.y - covered.y + region.height)
        .flat_map(|row| &pixels.data[row as usize * stride + left..][..region.width as usize * 3])
        .copied()
        .collect()
}

fn region_in(header: &Header, corners: [f64; 4]) -> Rect {
    let span = |a: f64, b: f64, size: u32| {
        let start = (a * f64::from(size - 1)) as u32;
        (start, 1 + (b * f64::from(size - 1 - start)) as u32)
    };
    let (x, width) = span(corners[0], corners[1], header.width);
    let (y, height) = span(corners[2], corners[3], header.height);
    Rect { x, y, width, height }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Each case draws one region and tries it on every file at every scale with one decoder, so that the decoder's
    /// state has seen all kinds of files before.
    #[test]
    fn a_crop_has_the_pixels_of_the_full_decode(corners in prop::array::uniform4(0.0..=1.0f64)) {
        let limits = Limits::default();
        let mut decoder = Decoder::new(limits);
        let (mut whole, mut part) = (Pixels::default(), Pixels::default());
        for name in CROPS {
            let bytes = fixture(name);
            let header = probe(&bytes, &limits).unwrap();
            for scale in SCALES {
                let all = Request { scale, ..Request::whole(&header) };
                let full = decoder.decode(&bytes, &header, &all, &mut whole).unwrap();
                let request = Request { region: region_in(&header, corners), scale };
                let decoded = decoder.decode(&bytes, &header, &request, &mut part).unwrap();
                prop_assert_eq!(decoded.full, full.full);
                let region = request.scaled_region(&header);
                prop_assert!(
                    cut(&part, &decoded.covered, &region) == cut(&whole, &full.covered, &region),
                    "{} at 1/{} differs in {:?}", name, scale.denominator(), region
                );
            }
        }
    }
}

#[test]
fn a_crop_of_a_truncated_file_is_refused_even_where_its_pixels_are_there() {
    let whole = fixture("crop_420.jpg");
    let header = probe(&whole, &Limits::default()).unwrap();
    let mut decoder = Decoder::new(Limits::default());
    let top = Request { region: Rect::whole(header.width, 8), scale: Scale::Full };
    for length in [whole.len() - 2, whole.len() - 40, whole.len() / 2] {
        let result = decoder.decode(&whole[..length], &header, &top, &mut Pixels::default());
        if length < whole.len() - 2 {
            let error = result.unwrap_err();
            assert_eq!(error.kind(), "truncated");
            assert_eq!(
                error.to_string(),
                format!("the file ends at byte {length} before the jpeg image is complete; copy it again")
            );
        }
    }
}

#[test]
fn tables_of_one_file_do_not_leak_into_the_next() {
    let bytes = fixture("jpeg_without_huffman_tables.jpg");
    let header = probe(&bytes, &Limits::default()).unwrap();
    let (_, _, alone) = decode_whole(&bytes).unwrap();
    let mut decoder = Decoder::new(Limits::default());
    let mut pixels = Pixels::default();
    for before in ["crop_progressive.jpg", "jpeg_420.jpg", "jpeg_grey.jpg"] {
        let other = fixture(before);
        let other_header = probe(&other, &Limits::default()).unwrap();
        decoder.decode(&other, &other_header, &Request::whole(&other_header), &mut pixels).unwrap();
        decoder.decode(&bytes, &header, &Request::whole(&header), &mut pixels).unwrap();
        assert!(pixels.data == alone.data, "after {before}");
    }
}

#[test]
fn damage_is_counted_and_the_pixels_are_pillows() {
    for name in ["damaged_scan", "early_end"] {
        let bytes = fixture(&format!("hostile/{name}.jpg"));
        let (_, decoded, pixels) = decode_whole(&bytes).unwrap();
        assert!(decoded.warnings > 0, "{name}");
        assert!(pixels.data == fixture(&format!("hostile/{name}.rgb")), "{name}");
    }
}

#[test]
fn a_scan_bomb_is_refused() {
    let error = decode_whole(&fixture("hostile/scan_bomb.jpg")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "this kind of jpeg is not supported: more than 100 progressive scans; convert the file or leave it out"
    );
}
