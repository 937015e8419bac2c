//! From the bytes of a file to a [`Clip`].

use std::io::{Cursor, ErrorKind};
use std::panic::{AssertUnwindSafe, catch_unwind};

use symphonia::core::codecs::audio::{AudioCodecParameters, AudioDecoderOptions};
use symphonia::core::errors::Error as SymphoniaError;
use symphonia::core::formats::{FormatOptions, FormatReader, Track, TrackType};
use symphonia::core::io::{MediaSource, MediaSourceStream, ReadOnlySource};
use symphonia::default::formats::{FlacReader, MpaReader, OggReader};

use super::format::{end_tag_bytes, tag_bytes};
use super::pipeline::RATE_MAX;
use super::{AudioError, Clip, Format, ogg, sniff, wav};

/// What is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most values a clip may have in all channels together.
    pub values_max: u64,
}

impl Limits {
    /// Refuses a clip of this length.
    pub(super) fn check(&self, frames: u64, channels: u16) -> Result<(), AudioError> {
        let values = frames.saturating_mul(u64::from(channels));
        let values_max = self.values_max;
        if values > values_max { Err(AudioError::TooLong { values, values_max }) } else { Ok(()) }
    }
}

/// What a file says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What it is.
    pub format: Format,
    /// Samples per second.
    pub rate: u32,
    /// How many channels there are.
    pub channels: u16,
    /// How many values each channel has, where that is known.
    pub frames: Option<u64>,
}

/// An MP3 may be so many values shorter than it says, which is one frame: some encoders count the one that says it.
const UNCOUNTED: u64 = 1152;

/// Of Vorbis with more channels than this the decoder makes something else than was recorded, depending on the rate, and does not tell.
const VORBIS_CHANNELS_MAX: u16 = 2;

/// Reads the header of a file. It decodes nothing, but goes through a file that does not say how long it is.
///
/// # Errors
/// When the file is none that could be decoded.
pub fn probe(bytes: &[u8]) -> Result<Header, AudioError> {
    let format = format_of(bytes)?;
    let header = match format {
        Format::Wav => wav::probe(bytes)?,
        format => guarded(format, || {
            let mut reader = open(format, bytes)?;
            let (track, parameters) = track_of(format, &*reader)?;
            let said = header(format, track, parameters)?;
            let id = track.id;
            let frames = said.frames.or_else(|| count_frames(&mut *reader, id));
            Ok(Header { frames, ..said })
        })?,
    };
    check_rate(format, header.rate)?;
    Ok(header)
}

/// How many values each channel of a track has, by going through it; `None` where that cannot be done to its end.
fn count_frames(reader: &mut dyn FormatReader, track: u32) -> Option<u64> {
    let mut frames = 0u64;
    while let Some(packet) = reader.next_packet().ok()? {
        if packet.track_id == track {
            frames = frames.checked_add(packet.dur.get())?;
        }
    }
    Some(frames)
}

/// Refuses what no file can mean, since resampling it takes for ever.
fn check_rate(format: Format, rate: u32) -> Result<(), AudioError> {
    if rate > RATE_MAX {
        return Err(AudioError::corrupt(format, format!("the header claims {rate} values a second")));
    }
    Ok(())
}

/// The header of a file of which only the first bytes are at hand, where they say all.
#[must_use]
pub fn header_from_start(start: &[u8], file_bytes: u64) -> Option<Header> {
    match sniff(start)? {
        Format::Wav => wav::header_from_start(start, file_bytes),
        Format::Flac => stream_info(start.get(tag_bytes(start)..)?),
        Format::Mp3 | Format::Ogg => None,
    }
}

/// The first block of a FLAC file: 20 bits of sample rate, 3 of channels, 5 of depth and 36 of length from byte 18 on. `None` also
/// where the length is not said.
fn stream_info(start: &[u8]) -> Option<Header> {
    let is_first = *start.get(4)? & 0x7f == 0;
    let words = start.get(18..26).filter(|_| is_first)?.first_chunk::<8>()?;
    let packed = u64::from_be_bytes(*words);
    let frames = Some(packed & ((1 << 36) - 1)).filter(|frames| *frames > 0)?;
    Some(Header {
        format: Format::Flac,
        rate: (packed >> 44) as u32,
        channels: (packed >> 41 & 7) as u16 + 1,
        frames: Some(frames),
    })
}

/// Decodes a whole file into `clip`. `packet` is scratch memory.
pub(super) fn decode(
    bytes: &[u8],
    limits: &Limits,
    packet: &mut Vec<f32>,
    clip: &mut Clip,
) -> Result<Format, AudioError> {
    let format = format_of(bytes)?;
    match format {
        Format::Wav => wav::decode(bytes, limits, clip)?,
        _ => guarded(format, || decode_packets(format, bytes, limits, packet, clip))?,
    }
    check_rate(format, clip.rate)?;
    Ok(format)
}

fn format_of(bytes: &[u8]) -> Result<Format, AudioError> {
    if bytes.is_empty() {
        return Err(AudioError::Empty);
    }
    sniff(bytes).ok_or_else(|| AudioError::unrecognised(bytes))
}

/// Whatever a file does to the decoder, all that is wrong is the file.
fn guarded<T>(format: Format, work: impl FnOnce() -> Result<T, AudioError>) -> Result<T, AudioError> {
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|_| Err(AudioError::corrupt(format, "the decoder gave up on it")))
}

/// The bytes without the tags before and behind the sound.
fn sound_in(format: Format, bytes: &[u8]) -> &[u8] {
    let sound = bytes.get(tag_bytes(bytes)..).unwrap_or_default();
    // The reader of FLAC takes all that follows the last frame's beginning for a part of it.
    let after = if format == Format::Flac { end_tag_bytes(sound) } else { 0 };
    &sound[..sound.len() - after]
}

fn open(format: Format, bytes: &[u8]) -> Result<Box<dyn FormatReader + '_>, AudioError> {
    let sound = Cursor::new(sound_in(format, bytes));
    // Where it can look ahead, the reader of MP3 guesses a length from the first frames if none is said, and cuts off what lies
    // beyond.
    let source: Box<dyn MediaSource + '_> = match format {
        Format::Mp3 => Box::new(ReadOnlySource::new(sound)),
        _ => Box::new(sound),
    };
    let stream = MediaSourceStream::new(source, Default::default());
    let options = FormatOptions::default();
    let opened: Result<Box<dyn FormatReader + '_>, SymphoniaError> = match format {
        Format::Flac => FlacReader::try_new(stream, options).map(|reader| Box::new(reader) as _),
        Format::Ogg => OggReader::try_new(stream, options).map(|reader| Box::new(reader) as _),
        Format::Mp3 | Format::Wav => MpaReader::try_new(stream, options).map(|reader| Box::new(reader) as _),
    };
    opened.map_err(|error| explain(format, bytes, &error))
}

fn track_of(
    format: Format,
    reader: &dyn FormatReader,
) -> Result<(&Track, &AudioCodecParameters), AudioError> {
    reader
        .default_track(TrackType::Audio)
        .and_then(|track| Some((track, track.codec_params.as_ref()?.audio()?)))
        .ok_or_else(|| AudioError::unsupported(format, "there is no sound of a known kind in it"))
}

fn header(format: Format, track: &Track, parameters: &AudioCodecParameters) -> Result<Header, AudioError> {
    let channels = parameters.channels.as_ref().and_then(|channels| u16::try_from(channels.count()).ok());
    match (parameters.sample_rate, channels) {
        (Some(_), Some(channels)) if format == Format::Ogg && channels > VORBIS_CHANNELS_MAX => {
            let what = format!("it has {channels} channels, and of Vorbis only one or two are decoded right");
            Err(AudioError::unsupported(format, what))
        }
        (Some(rate @ 1..), Some(channels @ 1..)) => {
            Ok(Header { format, rate, channels, frames: track.num_frames })
        }
        _ => Err(AudioError::corrupt(format, "the header gives no channels or no sample rate")),
    }
}

fn explain(format: Format, bytes: &[u8], error: &SymphoniaError) -> AudioError {
    match error {
        SymphoniaError::IoError(error) if error.kind() == ErrorKind::UnexpectedEof => {
            AudioError::truncated(format, bytes)
        }
        SymphoniaError::Unsupported(what) => AudioError::unsupported(format, *what),
        SymphoniaError::DecodeError(reason) | SymphoniaError::LimitError(reason) => {
            AudioError::corrupt(format, *reason)
        }
        SymphoniaError::ResetRequired => {
            AudioError::unsupported(format, "several recordings, one behind the other")
        }
        other => AudioError::corrupt(format, other.to_string()),
    }
}

/// Whether a FLAC file goes on behind its metadata and so many bytes of frames.
fn has_more(sound: &[u8], frame_bytes: usize) -> bool {
    let mut at = b"fLaC".len();
    while let Some([kind, a, b, c]) = sound.get(at..).and_then(|rest| rest.first_chunk()) {
        at += 4 + u32::from_be_bytes([0, *a, *b, *c]) as usize;
        if kind & 0x80 != 0 {
            break;
        }
    }
    at + frame_bytes < sound.len()
}

fn decode_packets(
    format: Format,
    bytes: &[u8],
    limits: &Limits,
    packet_values: &mut Vec<f32>,
    clip: &mut Clip,
) -> Result<(), AudioError> {
    if format == Format::Ogg {
        ogg::check_pages(bytes)?;
    }
    let mut reader = open(format, bytes)?;
    let (track, parameters) = track_of(format, &*reader)?;
    let header = header(format, track, parameters)?;
    limits.check(header.frames.unwrap_or(0), header.channels)?;
    let id = track.id;
    let mut decoder = symphonia::default::get_codecs()
        .make_audio_decoder(parameters, &AudioDecoderOptions::default())
        .map_err(|error| explain(format, bytes, &error))?;

    let channels = usize::from(header.channels);
    // Interleaved at first, as the length need not be known.
    clip.values.clear();
    let mut packet_bytes = 0;
    loop {
        let packet = match reader.next_packet() {
            Ok(Some(packet)) => packet,
            Ok(None) => break,
            // The end of an MP3 is where its last whole frame ends; what follows may be a tag.
            Err(SymphoniaError::IoError(error))
                if format == Format::Mp3 && error.kind() == ErrorKind::UnexpectedEof =>
            {
                break;
            }
            Err(error) => return Err(explain(format, bytes, &error)),
        };
        if packet.track_id != id {
            continue;
        }
        packet_bytes += packet.data.len();
        // Frames that are damaged are left out by the reader, and those behind them still say where they belong.
        if format == Format::Flac && packet.pts.get() != (clip.values.len() / channels) as i64 {
            return Err(AudioError::corrupt(format, "some of its frames are damaged"));
        }
        let decoded = decoder.decode(&packet).map_err(|error| explain(format, bytes, &error))?;
        let spec = decoded.spec();
        if decoded.frames() > 0 && (spec.rate() != header.rate || spec.channels().count() != channels) {
            let what = "its sample rate or number of channels changes on the way";
            return Err(AudioError::unsupported(format, what));
        }
        decoded.copy_to_vec_interleaved(packet_values);
        clip.values.extend_from_slice(packet_values);
        limits.check((clip.values.len() / channels) as u64, header.channels)?;
    }
    let frames = (clip.values.len() / channels) as u64;
    let uncounted = if format == Format::Mp3 { UNCOUNTED } else { 0 };
    let is_short = match header.frames {
        Some(promised) => frames.saturating_add(uncounted) < promised,
        // A last frame that is not whole is left out, too, and here nobody else would miss it.
        None => format == Format::Flac && has_more(sound_in(format, bytes), packet_bytes),
    };
    if is_short {
        return Err(AudioError::truncated(format, bytes));
    }
    if frames == 0 && format == Format::Mp3 {
        return Err(AudioError::truncated(format, bytes));
    }
    clip.rate = header.rate;
    clip.channels = channels;
    separate(&mut clip.values, channels, packet_values);
    Ok(())
}

/// Puts the values of each channel together.
fn separate(values: &mut Vec<f32>, channels: usize, scratch: &mut Vec<f32>) {
    if channels < 2 {
        return;
    }
    scratch.clear();
    for channel in 0..channels {
        scratch.extend(values.iter().skip(channel).step_by(channels));
    }
    std::mem::swap(values, scratch);
}
