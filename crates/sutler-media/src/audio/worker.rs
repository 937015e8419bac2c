//! One thread's tools: a clip, the tables for its transforms, and the features made of it.

use sutler_core::{SampleId, SampleRng};

use super::decode::{Limits, decode};
use super::op::{Normalization, Op};
use super::pipeline::{Drawn, Pipeline, PipelineError, Plan};
use super::resample::{Filter, Ratio, Resampler};
use super::silence::sounding;
use super::spectrum::Spectrogram;
use super::{AudioError, Clip};

/// How many sets of tables a worker keeps: as many as there are sample rates in most datasets, times a few operations.
const TABLES_MAX: usize = 16;

/// A buffer beyond this is given back after its sample: one giant among the samples should not cost every thread its size.
const KEPT_VALUES_MAX: usize = 16 << 20;

/// The shape of what comes out, the last axis being time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Channels, unless they were mixed to one.
    pub channels: Option<u32>,
    /// Features of a frame, unless the signal itself comes out.
    pub features: Option<u32>,
    /// Frames of a spectrogram, or values of a signal.
    pub frames: u32,
}

impl Shape {
    /// The axes from the right, with zeros for those that are not there.
    #[must_use]
    pub fn axes(&self) -> [u32; 3] {
        match (self.channels, self.features) {
            (Some(channels), Some(features)) => [channels, features, self.frames],
            (Some(rows), None) | (None, Some(rows)) => [0, rows, self.frames],
            (None, None) => [0, 0, self.frames],
        }
    }

    /// How many bytes it takes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let rows = self.channels.unwrap_or(1) as usize * self.features.unwrap_or(1) as usize;
        rows * self.frames as usize * size_of::<f32>()
    }
}

/// Features over time: for each channel frame after frame, so that one frame lies together.
#[derive(Default)]
pub(super) struct Features {
    pub channels: usize,
    pub count: usize,
    pub frames: usize,
    pub values: Vec<f32>,
}

/// A clip between two operations, away from any worker.
pub struct Unfinished {
    clip: Clip,
    features: Option<Features>,
}

/// Decodes and transforms one clip after another. Each thread has its own.
pub struct Worker {
    limits: Limits,
    mono: bool,
    pub(super) clip: Clip,
    pub(super) features: Option<Features>,
    /// The memory of features while a signal is at hand.
    pub(super) spare: Vec<f32>,
    scratch: Vec<f32>,
    resamplers: Vec<Resampler>,
    spectrograms: Vec<Spectrogram>,
}

impl Worker {
    /// A worker that keeps to these limits and, if `mono`, mixes all channels to one.
    #[must_use]
    pub fn new(limits: Limits, mono: bool) -> Self {
        Self {
            limits,
            mono,
            clip: Clip::default(),
            features: None,
            spare: Vec::new(),
            scratch: Vec::new(),
            resamplers: Vec::new(),
            spectrograms: Vec::new(),
        }
    }

    /// Another clip begins: what the last one has left is room for it.
    pub(super) fn begin(&mut self) {
        if let Some(features) = self.features.take() {
            self.spare = features.values;
        }
        for buffer in [&mut self.clip.values, &mut self.spare, &mut self.scratch] {
            if buffer.capacity() > KEPT_VALUES_MAX {
                *buffer = Vec::new();
            }
        }
    }

    /// Decodes a file.
    ///
    /// # Errors
    /// When it is none that can be decoded.
    pub fn decode(&mut self, bytes: &[u8]) -> Result<&Clip, AudioError> {
        self.begin();
        decode(bytes, &self.limits, &mut self.scratch, &mut self.clip)?;
        if self.mono {
            self.clip.mix();
        }
        Ok(&self.clip)
    }

    /// Runs the operations as the plan has decided, and tells the shape of the result.
    ///
    /// # Errors
    /// When an operation cannot be run on this clip.
    pub fn transform(&mut self, pipeline: &Pipeline, plan: &Plan) -> Result<Shape, PipelineError> {
        for index in 0..pipeline.ops().len() {
            self.step(pipeline, plan, index)?;
        }
        Ok(self.shape())
    }

    /// Runs one operation, the one that is next, as the plan has decided.
    ///
    /// # Errors
    /// When it cannot be run on this clip, or the pipeline has no such operation.
    pub fn step(&mut self, pipeline: &Pipeline, plan: &Plan, index: usize) -> Result<(), PipelineError> {
        let refused = |op, reason| PipelineError::Refused { index, op, reason };
        let Some((op, drawn)) = pipeline.ops().get(index).zip(plan.drawn.get(index)) else {
            return Err(refused("none", "there is no such operation, or no plan for it".to_owned()));
        };
        self.run(op, *drawn).map_err(|reason| refused(op.name(), reason))
    }

    /// Gives away the clip between two operations.
    pub fn put_aside(&mut self) -> Unfinished {
        Unfinished { clip: std::mem::take(&mut self.clip), features: self.features.take() }
    }

    /// Takes up a clip that this worker or another one has put aside.
    pub fn take_up(&mut self, unfinished: Unfinished) {
        let Unfinished { clip, features } = unfinished;
        self.clip = clip;
        if let Some(before) = std::mem::replace(&mut self.features, features) {
            self.spare = before.values;
        }
    }

    /// The shape of what there is now.
    #[must_use]
    pub fn shape(&self) -> Shape {
        let channels = (!self.mono).then_some(self.clip.channels as u32);
        match &self.features {
            Some(Features { count, frames, .. }) => {
                Shape { channels, features: Some(*count as u32), frames: *frames as u32 }
            }
            None => Shape { channels, features: None, frames: self.clip.frames() as u32 },
        }
    }

    /// Writes the result; time is the last axis.
    ///
    /// # Errors
    /// When the room has another size than [`Shape::bytes`].
    pub fn write(&self, out: &mut [u8]) -> Result<(), PipelineError> {
        let needed = self.shape().bytes();
        if out.len() != needed {
            return Err(PipelineError::Room { needed, given: out.len() });
        }
        let Some(features) = &self.features else {
            for (out, value) in out.chunks_exact_mut(4).zip(&self.clip.values) {
                out.copy_from_slice(&value.to_ne_bytes());
            }
            return Ok(());
        };
        let Features { count, frames, values, .. } = features;
        if values.is_empty() {
            return Ok(());
        }
        let planes = values.chunks_exact(count * frames).zip(out.chunks_exact_mut(4 * count * frames));
        for (plane, out) in planes {
            for (feature, row) in out.chunks_exact_mut(4 * frames).enumerate() {
                for (out, frame) in row.chunks_exact_mut(4).zip(plane.chunks_exact(*count)) {
                    out.copy_from_slice(&frame[feature].to_ne_bytes());
                }
            }
        }
        Ok(())
    }

    fn run(&mut self, op: &Op, drawn: Drawn) -> Result<(), String> {
        match op {
            Op::Resample { orig_freq, new_freq, resampling_method, lowpass_filter_width, rolloff, beta } => {
                if let Some(expected) = orig_freq.filter(|&expected| expected != self.clip.rate) {
                    let rate = self.clip.rate;
                    return Err(format!(
                        "orig_freq is {expected} Hz and the sound has {rate}; leave orig_freq out to take each file's own"
                    ));
                }
                let filter = Filter {
                    kernel: *resampling_method,
                    width: *lowpass_filter_width,
                    rolloff: *rolloff,
                    beta: *beta,
                };
                if self.clip.rate != *new_freq {
                    self.resample(Ratio::Rates(self.clip.rate, *new_freq), filter)?;
                    self.clip.rate = *new_freq;
                }
            }
            Op::SpeedPerturb { .. } => {
                if let Drawn::Speed(speed) = drawn
                    && speed != 1.0
                {
                    self.resample(Ratio::Speed(speed), Filter::default())?;
                }
            }
            Op::TrimSilence { top_db, frame_length, hop_length } => {
                let kept = sounding(&self.clip, *top_db, *frame_length as usize, *hop_length as usize);
                self.scratch.clear();
                for plane in self.clip.planes() {
                    self.scratch.extend_from_slice(&plane[kept.clone()]);
                }
                std::mem::swap(&mut self.clip.values, &mut self.scratch);
            }
            Op::Dither { amount } => {
                if let Drawn::Seed(seed) = drawn {
                    dither(&mut self.clip.values, *amount, seed);
                }
            }
            Op::PreEmphasis { coeff } => {
                let frames = self.clip.frames().max(1);
                for plane in self.clip.values.chunks_mut(frames) {
                    let mut before = 0.0;
                    for value in plane {
                        let now = *value;
                        *value = now - *coeff as f32 * before;
                        before = now;
                    }
                }
            }
            Op::MelSpectrogram { sample_rate, f_max, .. } => self.spectrogram(op, *sample_rate, *f_max)?,
            Op::LogMel { offset, normalize, epsilon } => {
                let Some(features) = &mut self.features else { return Ok(()) };
                let offset = *offset as f32;
                features.values.iter_mut().for_each(|value| *value = (*value + offset).ln());
                match normalize {
                    Some(Normalization::PerFeature) => features.normalise_each(*epsilon),
                    Some(Normalization::AllFeatures) => features.normalise_all(*epsilon),
                    None => {}
                }
            }
            Op::SpecAugment { freq_masks, min_freq, max_freq, time_masks, min_time, max_time, value } => {
                if let (Some(features), Drawn::Seed(seed)) = (&mut self.features, drawn) {
                    let mut rng = SampleRng::new(seed, 0, SampleId(0));
                    for _ in 0..*freq_masks {
                        features.mask_features([*min_freq, *max_freq], *value as f32, &mut rng);
                    }
                    let times = [*min_time, *max_time].map(|time| features.time(time));
                    for _ in 0..*time_masks {
                        features.mask_frames(times, *value as f32, &mut rng);
                    }
                }
            }
            Op::FrameStack { stack, subsample } => {
                if let Some(features) = &mut self.features {
                    features.stack(*stack as usize, *subsample as usize, &mut self.scratch);
                }
            }
        }
        Ok(())
    }

    fn resample(&mut self, ratio: Ratio, filter: Filter) -> Result<(), String> {
        // A speed that was drawn at random does not come again.
        let drawn;
        let tables = if matches!(ratio, Ratio::Speed(_)) {
            drawn = Resampler::new(ratio, filter);
            &drawn
        } else {
            let known = self.resamplers.iter().position(|tables| tables.is_for(ratio, filter));
            let index = known.unwrap_or_else(|| keep(&mut self.resamplers, Resampler::new(ratio, filter)));
            &self.resamplers[index]
        };
        let values = tables.length(self.clip.frames()).saturating_mul(self.clip.channels) as u64;
        if values > self.limits.values_max {
            let values_max = self.limits.values_max;
            return Err(format!(
                "the result would have {values} values, and the limit is {values_max}; raise values_max"
            ));
        }
        tables.run(&mut self.clip, &mut self.scratch);
        Ok(())
    }

    fn spectrogram(&mut self, op: &Op, expected: Option<u32>, f_max: Option<f64>) -> Result<(), String> {
        let rate = self.clip.rate;
        if let Some(expected) = expected.filter(|&expected| expected != rate) {
            return Err(format!(
                "sample_rate is {expected} Hz and the sound has {rate}; put Resample(new_freq={expected}) before it, or \
                 leave sample_rate out to take each file's own"
            ));
        }
        if let Some(f_max) = f_max.filter(|&f_max| f_max > f64::from(rate) / 2.0) {
            return Err(format!(
                "f_max is {f_max} Hz, and sound of {rate} Hz has nothing above half of that; lower it, or leave it out"
            ));
        }
        let index = match self.spectrograms.iter().position(|tables| tables.is_for(op, rate)) {
            Some(index) => index,
            None => {
                let Some(tables) = Spectrogram::new(op, rate) else { return Ok(()) };
                keep(&mut self.spectrograms, tables)
            }
        };
        let tables = &mut self.spectrograms[index];
        let centred = tables.is_centred();
        let mut values = std::mem::take(&mut self.spare);
        values.clear();
        let mut frames = 0;
        for plane in self.clip.planes() {
            frames = tables.run(plane, &mut values).map_err(|short| {
                let (found, least) = (plane.len(), short.least);
                let padded = if centred { "" } else { "center=True, " };
                format!(
                    "the sound has {found} values and a frame needs {least}; leave the file out, or pass {padded}pad_mode='constant'"
                )
            })?;
        }
        if self.clip.values.is_empty() {
            return Err("the sound has no values; leave the file out".to_owned());
        }
        self.features = Some(Features { channels: self.clip.channels, count: tables.mels(), frames, values });
        Ok(())
    }
}

/// Keeps tables for clips to come, in place of the oldest where there are many, and tells where they are.
fn keep<T>(tables: &mut Vec<T>, new: T) -> usize {
    if tables.len() == TABLES_MAX {
        tables.remove(0);
    }
    tables.push(new);
    tables.len() - 1
}

/// Adds normal noise. Both values of each pair that Box and Muller's method gives are used.
fn dither(values: &mut [f32], amount: f64, seed: u64) {
    let mut rng = SampleRng::new(seed, 0, SampleId(0));
    // 24 random bits are all that a float of this size can hold.
    let mut unit = move || (rng.next_u32() >> 8) as f32 * (1.0 / (1 << 24) as f32);
    for pair in values.chunks_mut(2) {
        let radius = (-2.0 * (1.0 - unit()).ln()).sqrt() * amount as f32;
        let (sine, cosine) = (std::f32::consts::TAU * unit()).sin_cos();
        for (value, direction) in pair.iter_mut().zip([cosine, sine]) {
            *value += radius * direction;
        }
    }
}

impl Features {
    /// Each feature of each channel to mean 0 and deviation 1 over its frames.
    fn normalise_each(&mut self, epsilon: f64) {
        let (count, frames) = (self.count, self.frames);
        for plane in self.values.chunks_exact_mut((count * frames).max(1)) {
            let mut sums = vec![[0.0f64; 2]; count];
            for frame in plane.chunks_exact(count) {
                for (sums, &value) in sums.iter_mut().zip(frame) {
                    sums[0] += f64::from(value);
                }
            }
            sums.iter_mut().for_each(|[mean, _]| *mean /= frames as f64);
            for frame in plane.chunks_exact(count) {
                for ([mean, squares], &value) in sums.iter_mut().zip(frame) {
                    *squares += (f64::from(value) - *mean).powi(2);
                }
            }
            for frame in plane.chunks_exact_mut(count) {
                for ([mean, squares], value) in sums.iter().zip(frame) {
                    *value = ((f64::from(*value) - mean) / (deviation(*squares, frames) + epsilon)) as f32;
                }
            }
        }
    }

    /// All features of each channel together.
    fn normalise_all(&mut self, epsilon: f64) {
        let size = self.count * self.frames;
        for plane in self.values.chunks_exact_mut(size.max(1)) {
            let mean = plane.iter().map(|&value| f64::from(value)).sum::<f64>() / size as f64;
            let squares = plane.iter().map(|&value| (f64::from(value) - mean).powi(2)).sum();
            let scale = deviation(squares, size) + epsilon;
            plane.iter_mut().for_each(|value| *value = ((f64::from(*value) - mean) / scale) as f32);
        }
    }

    /// A time in frames: below 1 it is a share of the length, rounded as NVIDIA's recipe does it in Python.
    fn time(&self, time: f64) -> u32 {
        if time < 1.0 { (time * self.frames as f64).round_ties_even() as u32 } else { time as u32 }
    }

    /// Overwrites a random band of features, the same in all channels.
    fn mask_features(&mut self, widths: [u32; 2], value: f32, rng: &mut SampleRng) {
        let (start, end) = draw_span(widths, self.count, rng);
        for frame in self.values.chunks_exact_mut(self.count) {
            frame[start..end].fill(value);
        }
    }

    /// Overwrites a random span of frames, the same in all channels.
    fn mask_frames(&mut self, widths: [u32; 2], value: f32, rng: &mut SampleRng) {
        let (start, end) = draw_span(widths, self.frames, rng);
        for plane in self.values.chunks_exact_mut((self.count * self.frames).max(1)) {
            plane[start * self.count..end * self.count].fill(value);
        }
    }

    /// Puts each kept frame together with those that follow it; there are zeros beyond the end.
    fn stack(&mut self, stack: usize, subsample: usize, out: &mut Vec<f32>) {
        let (count, frames) = (self.count, self.frames);
        let kept = frames.div_ceil(subsample);
        out.clear();
        out.reserve(self.channels * kept * stack * count);
        for plane in self.values.chunks_exact((count * frames).max(1)) {
            for frame in 0..kept {
                for offset in 0..stack {
                    let start = (frame * subsample + offset) * count;
                    match plane.get(start..start + count) {
                        Some(values) => out.extend_from_slice(values),
                        None => out.resize(out.len() + count, 0.0),
                    }
                }
            }
        }
        std::mem::swap(&mut self.values, out);
        self.count = count * stack;
        self.frames = kept;
    }
}

/// The deviation that belongs to a sum of squared differences; that of a single value is none.
fn deviation(squares: f64, count: usize) -> f64 {
    (squares / count.saturating_sub(1).max(1) as f64).sqrt()
}

/// A width between two others, both included, and where it begins among `size` places, as in NVIDIA's speech recognition.
fn draw_span([least, most]: [u32; 2], size: usize, rng: &mut SampleRng) -> (usize, usize) {
    let width = least + rng.below((most - least).saturating_add(1));
    let start = rng.below((size as u32).saturating_sub(width).max(1)) as usize;
    (start, (start + width as usize).min(size))
}
