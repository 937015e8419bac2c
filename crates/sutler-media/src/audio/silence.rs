//! Where a clip begins and ends to be heard, as `librosa.effects.trim` finds it.

use std::ops::Range;

use super::Clip;

/// librosa's floor for amplitudes, as power.
const POWER_MIN: f64 = 1e-10;

/// The part from the first to the last frame that is less than `top_db` below the loudest one, in any channel.
///
/// A frame's loudness is the root of its mean square. Frames are centred on every `hop`-th value, with silence beyond
/// the ends. Where all is silence nothing is quieter than the rest, and everything stays.
pub(super) fn sounding(clip: &Clip, top_db: f64, frame_length: usize, hop: usize) -> Range<usize> {
    let frames = clip.frames();
    let count = 1 + (frames + 2 * (frame_length / 2)).saturating_sub(frame_length) / hop;
    let loudness: Vec<Vec<f64>> =
        clip.planes().map(|plane| mean_squares(plane, frame_length, hop, count)).collect();
    let loudest = loudness.iter().flatten().copied().fold(POWER_MIN, f64::max);
    let least = 10f64.powf(-top_db / 10.0);
    let is_heard =
        |&frame: &usize| loudness.iter().any(|plane| plane[frame].max(POWER_MIN) / loudest > least);
    match ((0..count).find(is_heard), (0..count).rfind(is_heard)) {
        (Some(first), Some(last)) if frames > 0 => (first * hop).min(frames)..((last + 1) * hop).min(frames),
        _ => 0..0,
    }
}

fn mean_squares(plane: &[f32], frame_length: usize, hop: usize, count: usize) -> Vec<f64> {
    let mut sums = Vec::with_capacity(plane.len() + 1);
    sums.push(0.0);
    let mut sum = 0.0;
    sums.extend(plane.iter().map(|&value| {
        sum += f64::from(value) * f64::from(value);
        sum
    }));
    let middle = frame_length / 2;
    (0..count)
        .map(|frame| {
            let end = (frame * hop + frame_length).saturating_sub(middle).min(plane.len());
            let start = (frame * hop).saturating_sub(middle).min(end);
            (sums[end] - sums[start]).max(0.0) / frame_length as f64
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clip(values: Vec<f32>) -> Clip {
        Clip { rate: 8000, channels: 1, values }
    }

    #[test]
    fn quiet_ends_go_and_the_middle_stays() {
        let mut values = vec![0.0; 10_000];
        values[4000..6000].fill(0.5);
        let range = sounding(&clip(values), 60.0, 512, 128);
        assert!((3600..4000).contains(&range.start) && (6000..6400).contains(&range.end), "{range:?}");
    }

    #[test]
    fn silence_and_nothing_are_left_as_they_are() {
        assert_eq!(sounding(&clip(vec![0.0; 3000]), 60.0, 512, 128), 0..3000);
        assert_eq!(sounding(&clip(Vec::new()), 60.0, 512, 128), 0..0);
        assert_eq!(sounding(&clip(vec![0.1; 3]), 60.0, 2048, 512), 0..3);
    }

    #[test]
    fn a_channel_that_sounds_keeps_the_others() {
        let mut values = vec![0.0; 4000];
        values[2000..].fill(0.5);
        let both = Clip { rate: 8000, channels: 2, values };
        assert_eq!(sounding(&both, 60.0, 256, 64), 0..2000);
    }
}
