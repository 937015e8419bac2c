//! Every committed image decodes to Pillow's pixels.

mod support;

use std::path::Path;

use support::{data, decode_whole, fixture, images};
use sutler_media::Rect;

#[test]
fn every_file_has_pillows_pixels() {
    let mut compared = 0;
    let mut wrong = Vec::new();
    for name in images(&data()) {
        let reference = data().join(Path::new(&name).with_extension("rgb"));
        let Ok(expected) = std::fs::read(reference) else { continue };
        match decode_whole(&fixture(&name)) {
            Ok((header, decoded, pixels)) => {
                assert_eq!(decoded.covered, Rect::whole(header.width, header.height), "{name}");
                assert_eq!(decoded.full, (header.width, header.height), "{name}");
                if pixels.data.len() != expected.len() {
                    wrong.push(format!("{name}: {} bytes, not {}", pixels.data.len(), expected.len()));
                } else if pixels.data != expected {
                    let differences = pixels.data.iter().zip(&expected).map(|(a, b)| a.abs_diff(*b));
                    let max = differences.clone().max().unwrap_or(0);
                    let count = differences.filter(|&d| d > 0).count();
                    wrong.push(format!(
                        "{name}: {count} of {} bytes differ, by at most {max}",
                        expected.len()
                    ));
                }
            }
            Err(error) => wrong.push(format!("{name}: {error}")),
        }
        compared += 1;
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(compared > 20, "only {compared} files were there to compare");
}
