//! How many images a second one thread decodes, whole and in random crops.
//!
//! ```text
//! cargo run --release --example decode_rate -- FOLDER [ROUNDS]
//! ```
//!
//! Every file below the folder is read into memory first. The crops are those of `RandomResizedCrop`: 8 to 100 % of the
//! area, sides between 3:4 and 4:3, the same ones for every line that is printed. Times are the best of the rounds.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use sutler_core::{SampleId, SampleRng};
use sutler_media::{Decoder, Header, Limits, Pixels, Rect, Request, Scale, probe};

/// What the crops are resized to afterwards; scaled decoding must not go below it.
const SIDE: u32 = 224;

struct Image {
    bytes: Vec<u8>,
    /// The same with so long a trailer that the decoder cannot trust the file to be complete, and goes to the end.
    with_trailer: Vec<u8>,
    header: Header,
    crop: Rect,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().ok_or("name a folder of images")?;
    let rounds: usize = arguments.next().map_or(Ok(5), |count| count.parse())?;
    let images = load(Path::new(&folder))?;
    let pixels: u64 = images.iter().map(|i| u64::from(i.header.width) * u64::from(i.header.height)).sum();
    let bytes: usize = images.iter().map(|image| image.bytes.len()).sum();
    println!("{} images, {:.1} MB, {:.1} megapixels", images.len(), bytes as f64 / 1e6, pixels as f64 / 1e6);

    let mut decoder = Decoder::new(Limits::default());
    let mut out = Pixels::default();
    let started = Instant::now();
    for image in &images {
        std::hint::black_box(probe(&image.bytes, &Limits::default())?);
    }
    println!("{:<44}{:>10.2} us/image", "probe", started.elapsed().as_secs_f64() * 1e6 / images.len() as f64);

    let mut measure = |what: &str, part: &dyn Fn(&Image) -> (&[u8], Request)| {
        let mut best = Duration::MAX;
        for _ in 0..rounds {
            let started = Instant::now();
            for image in &images {
                let (bytes, request) = part(image);
                decoder.decode(bytes, &image.header, &request, &mut out)?;
            }
            best = best.min(started.elapsed());
        }
        let rate = images.len() as f64 / best.as_secs_f64();
        println!("{what:<44}{rate:>10.0} images/s{:>10.0} us/image", 1e6 / rate);
        Ok::<(), sutler_media::DecodeError>(())
    };
    measure("whole", &|image| (&image.bytes, Request::whole(&image.header)))?;
    measure("crop, rows below it decoded", &|image| {
        (&image.with_trailer, Request { region: image.crop, scale: Scale::Full })
    })?;
    measure("crop", &|image| (&image.bytes, Request { region: image.crop, scale: Scale::Full }))?;
    measure("crop, scaled to no less than its final size", &|image| {
        (&image.bytes, Request { region: image.crop, scale: scale_for(&image.crop) })
    })?;
    Ok(())
}

fn load(folder: &Path) -> Result<Vec<Image>, Box<dyn std::error::Error>> {
    let mut paths = Vec::new();
    collect(folder, &mut paths)?;
    paths.sort();
    let mut images = Vec::new();
    for (index, path) in paths.iter().enumerate() {
        let bytes = std::fs::read(path)?;
        let Ok(header) = probe(&bytes, &Limits::default()) else {
            eprintln!("{} is left out: it is not an image", path.display());
            continue;
        };
        let mut rng = SampleRng::new(7, 0, SampleId(index as u32));
        let crop = random_crop(&header, &mut rng);
        let mut with_trailer = bytes.clone();
        with_trailer.resize(bytes.len() + 5000, 0);
        images.push(Image { bytes, with_trailer, header, crop });
    }
    Ok(images)
}

fn collect(folder: &Path, paths: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, paths)?;
        } else {
            paths.push(path);
        }
    }
    Ok(())
}

fn random_crop(header: &Header, rng: &mut SampleRng) -> Rect {
    let area = f64::from(header.width) * f64::from(header.height);
    for _ in 0..10 {
        let target = area * (0.08 + 0.92 * rng.unit());
        let ratio = (0.75f64.ln() + (4.0f64 / 3.0).ln() * 2.0 * rng.unit()).exp();
        let width = (target * ratio).sqrt().round() as u32;
        let height = (target / ratio).sqrt().round() as u32;
        if (1..=header.width).contains(&width) && (1..=header.height).contains(&height) {
            let x = (rng.unit() * f64::from(header.width - width + 1)) as u32;
            let y = (rng.unit() * f64::from(header.height - height + 1)) as u32;
            return Rect { x, y, width, height };
        }
    }
    Rect::whole(header.width, header.height)
}

fn scale_for(crop: &Rect) -> Scale {
    [Scale::Eighth, Scale::Quarter, Scale::Half]
        .into_iter()
        .find(|scale| crop.width.min(crop.height) >= SIDE * scale.denominator())
        .unwrap_or(Scale::Full)
}
