//! Files that lie, and files that are none: each gets an error that says so, and nothing panics.

use std::fs;
use std::path::PathBuf;

use proptest::prelude::*;
use sutler_core::{SampleId, SampleRng};
use sutler_media::audio::{AudioError, Clip, Limits, Pipeline, Plan, Worker, header_from_start, probe};

const LIMITS: Limits = Limits { values_max: 1 << 20 };
const NAMES: [&str; 6] = ["mono.flac", "stereo.flac", "mono.mp3", "stereo.mp3", "mono.ogg", "stereo.ogg"];

fn file(name: &str) -> Vec<u8> {
    let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), "tests", "sound", name].iter().collect();
    fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// 16-bit values in two channels.
fn wav(frames: usize) -> Vec<u8> {
    let data: Vec<u8> = (0..frames * 4).map(|byte| (byte * 37 % 251) as u8).collect();
    let mut file = b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0\x01\0\x02\0".to_vec();
    file.extend(8000u32.to_le_bytes());
    file.extend(32_000u32.to_le_bytes());
    file.extend(*b"\x04\0\x10\0data");
    file.extend((data.len() as u32).to_le_bytes());
    file.extend(data);
    file
}

fn decode(bytes: &[u8]) -> Result<Clip, AudioError> {
    Worker::new(LIMITS, false).decode(bytes).cloned()
}

fn all() -> Vec<(&'static str, Vec<u8>)> {
    NAMES.into_iter().map(|name| (name, file(name))).chain([("wav", wav(500))]).collect()
}

#[test]
fn headers_say_what_decoding_finds() {
    for (name, bytes) in all() {
        let clip = decode(&bytes).unwrap();
        let header = probe(&bytes).unwrap();
        assert_eq!((header.rate, usize::from(header.channels)), (clip.rate, clip.channels), "{name}");
        assert_eq!(header.frames, Some(clip.frames() as u64), "{name}");
        if let Some(early) = header_from_start(&bytes[..100], bytes.len() as u64) {
            assert_eq!(early, header, "{name}");
        } else {
            assert!(name.ends_with("mp3") || name.ends_with("ogg"), "{name}");
        }
    }
}

#[test]
fn a_file_that_was_cut_off_is_an_error() {
    for (name, bytes) in all() {
        // Some encoders count the frame of an MP3 that says how many there are, so the last one may be missing.
        let spared = if name.ends_with("mp3") { 1152 } else { 0 };
        let whole = decode(&bytes).unwrap().frames();
        for part in [1, 2, 3, 5, 7, 9] {
            let cut = &bytes[..bytes.len() * part / 10];
            match decode(cut) {
                Err(error) => {
                    assert!(
                        matches!(error.kind(), "truncated" | "corrupt" | "unsupported"),
                        "{name} at {part}: {error}"
                    );
                }
                Ok(clip) => {
                    assert!(
                        clip.frames() + spared >= whole && spared > 0,
                        "{name} at {part}: {}",
                        clip.frames()
                    )
                }
            }
        }
    }
}

#[test]
fn no_flipped_bit_changes_a_sound_unnoticed() {
    for name in ["mono.ogg", "stereo.ogg", "mono.flac", "stereo.flac"] {
        let bytes = file(name);
        let whole = decode(&bytes).unwrap();
        // What leads a FLAC file has no sum.
        let first = if name.ends_with("flac") { bytes.len() / 2 } else { 0 };
        for bit in (8 * first..8 * bytes.len()).step_by(997) {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            match decode(&flipped) {
                Err(error) => assert!(
                    matches!(error.kind(), "corrupt" | "truncated" | "unrecognised" | "unsupported"),
                    "{name}, bit {bit}: {error}"
                ),
                Ok(clip) => assert_eq!(clip, whole, "{name}, bit {bit}"),
            }
        }
        let middle = bytes.len() * 3 / 4;
        let mut flipped = bytes.clone();
        flipped[middle] ^= 0x10;
        assert_eq!(decode(&flipped).unwrap_err().kind(), "corrupt", "{name}: its end is where it should be");
    }
}

/// The decoder makes noise of some of them without telling.
#[test]
fn vorbis_with_more_than_two_channels_is_refused() {
    let bytes = file("three.ogg");
    for error in [probe(&bytes).unwrap_err(), decode(&bytes).unwrap_err()] {
        assert_eq!(error.kind(), "unsupported");
        assert!(error.to_string().contains("it has 3 channels"), "{error}");
    }
}

/// Frames of silence in one channel at 44,100 Hz, in an MP3 that says nothing of how many there are.
fn silent_mp3(kilobits: &[(u8, usize)]) -> Vec<u8> {
    const BITRATES: [usize; 15] = [0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320];
    let mut file = Vec::new();
    for &(bitrate, count) in kilobits {
        for _ in 0..count {
            let end = file.len() + 144_000 * BITRATES[usize::from(bitrate)] / 44_100;
            file.extend([0xff, 0xfb, bitrate << 4, 0xc0]);
            file.resize(end, 0);
        }
    }
    file
}

#[test]
fn an_mp3_that_does_not_say_how_long_it_is_is_decoded_to_its_end() {
    // A length guessed from the first frames would be too small where those are large, and too great where they are small.
    for kilobits in [[(14, 30), (1, 30)], [(1, 30), (14, 30)], [(9, 1), (9, 2)]] {
        let bytes = silent_mp3(&kilobits);
        let frames: usize = kilobits.iter().map(|(_, count)| count * 1152).sum();
        assert_eq!(decode(&bytes).unwrap().frames(), frames, "{kilobits:?}");
        assert_eq!(probe(&bytes).unwrap().frames, Some(frames as u64), "{kilobits:?}");
    }
}

#[test]
fn a_flac_file_may_have_a_tag_and_no_length() {
    let plain = file("mono.flac");
    let whole = decode(&plain).unwrap();
    let tagged = [b"ID3\x04\0\0\0\0\0\x05hello".as_slice(), &plain].concat();
    assert_eq!(decode(&tagged).unwrap(), whole);
    assert_eq!(header_from_start(&tagged[..100], tagged.len() as u64), probe(&plain).ok());
    let mut unsaid = plain;
    unsaid[21] &= 0xf0;
    unsaid[22..26].fill(0);
    assert_eq!(header_from_start(&unsaid[..100], unsaid.len() as u64), None);
    assert_eq!(probe(&unsaid).unwrap().frames, Some(whole.frames() as u64));
    assert_eq!(decode(&unsaid).unwrap(), whole);
    let mut title = [0; 128];
    title[..8].copy_from_slice(b"TAGTitle");
    for bytes in [file("mono.flac"), unsaid] {
        let tagged = [&bytes[..], &title].concat();
        assert_eq!(decode(&tagged).unwrap(), whole);
        let cut = [&bytes[..bytes.len() - 1], &title].concat();
        assert_eq!(decode(&cut).unwrap_err().kind(), "truncated");
        let error = decode(&[&bytes[..], b"whatever"].concat()).unwrap_err();
        assert_eq!(error.kind(), "truncated");
        assert!(error.to_string().contains("other bytes than a tag behind it"), "{error}");
    }
}

#[test]
fn a_rate_that_cannot_be_is_refused() {
    let mut bytes = wav(500);
    bytes[24..28].copy_from_slice(&u32::MAX.to_le_bytes());
    for error in [decode(&bytes).unwrap_err(), probe(&bytes).unwrap_err()] {
        assert_eq!(error.kind(), "corrupt");
        assert!(error.to_string().contains("4294967295 values a second"), "{error}");
    }
}

#[test]
fn what_is_no_sound_is_told_by_its_first_bytes() {
    assert_eq!(decode(b"").unwrap_err(), AudioError::Empty);
    let error = decode(b"<html>not found</html>").unwrap_err();
    assert_eq!(error.kind(), "unrecognised");
    assert!(error.to_string().contains("3c 68 74 6d 6c"), "{error}");
    assert!(probe(b"\x89PNG\r\n\x1a\n").is_err());
}

#[test]
fn limits_hold_for_every_format() {
    for (name, bytes) in all() {
        let error = Worker::new(Limits { values_max: 400 }, false).decode(&bytes).unwrap_err();
        assert!(matches!(error, AudioError::TooLong { values_max: 400, .. }), "{name}: {error}");
    }
}

#[test]
fn a_flac_that_promises_hours_takes_no_memory_for_them() {
    let mut bytes = file("mono.flac");
    bytes[21] |= 0x0f; // the upper bits of the length
    let error = decode(&bytes).unwrap_err();
    assert!(matches!(error, AudioError::TooLong { .. }), "{error}");
}

#[test]
fn a_clip_that_transforms_cannot_take_is_explained() {
    let run = |ops: &str, bytes: &[u8], mono: bool| {
        let pipeline = Pipeline::from_json(ops).unwrap();
        let mut plan = Plan::default();
        pipeline.draw(&mut SampleRng::new(0, 0, SampleId(0)), &mut plan);
        let mut worker = Worker::new(LIMITS, mono);
        worker.decode(bytes).unwrap();
        worker.transform(&pipeline, &plan).map(|shape| shape.axes()).map_err(|error| error.to_string())
    };
    let mel = |rate: &str| {
        format!(
            r#"[{{"op":"mel_spectrogram","sample_rate":{rate},"n_fft":512,"win_length":320,"hop_length":160,"f_min":0,
            "f_max":null,"n_mels":80,"power":2,"normalized":false,"center":true,"pad_mode":"reflect","norm":null,
            "mel_scale":"htk","periodic":true}}]"#
        )
    };
    assert_eq!(run("[]", &wav(500), true), Ok([0, 0, 500]));
    assert_eq!(run("[]", &wav(500), false), Ok([0, 2, 500]));
    assert_eq!(run(&mel("null"), &wav(500), false), Ok([2, 80, 4]));
    assert!(run(&mel("null"), &wav(100), true).unwrap_err().contains("a frame needs 257"));
    assert!(run(&mel("null"), &wav(0), true).unwrap_err().contains("leave the file out"));
    assert!(
        run(&mel("16000"), &wav(500), true).unwrap_err().contains("put Resample(new_freq=16000) before it")
    );
    let blown_up = r#"[{"op":"resample","orig_freq":null,"new_freq":1536000,"resampling_method":"sinc_interp_hann",
        "lowpass_filter_width":6,"rolloff":0.99,"beta":null},{"op":"speed_perturb","min_rate":0.1,"max_rate":0.1,
        "factors":null,"p":1}]"#;
    assert!(run(blown_up, &wav(1000), true).unwrap_err().contains("raise values_max"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn damaged_files_are_decoded_or_refused(
        which in 0..7usize,
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
        cut in any::<Option<prop::sample::Index>>(),
    ) {
        let (_, mut bytes) = all().swap_remove(which);
        for (place, value) in damage {
            let place = place.index(bytes.len());
            bytes[place] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        let _ = probe(&bytes);
        if let Ok(clip) = decode(&bytes) {
            prop_assert!(clip.channels > 0 && clip.rate > 0);
            prop_assert_eq!(clip.values.len() % clip.channels, 0);
        }
    }
}
