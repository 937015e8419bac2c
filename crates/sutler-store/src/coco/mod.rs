//! Pictures with boxes, as COCO's annotation files describe them.
//!
//! ```text
//! {"images":      [{"id": 7, "file_name": "7.jpg", "width": 640, "height": 480}],
//!  "annotations": [{"id": 1, "image_id": 7, "category_id": 18, "bbox": [x, y, width, height], "area": 1.0, "iscrowd": 0}],
//!  "categories":  [{"id": 18, "name": "dog"}]}
//! ```
//!
//! Samples come in the order of their ids and boxes in the order of the file, as pycocotools has them. Files written by many
//! tools are not quite in order, so there is a policy for each thing that is commonly off:
//!
//! - a box that reaches over the edge of its picture is cut at the edge;
//! - a box without area inside its picture (of no or negative width or height, or beyond the edges) is left out, or refused;
//! - an annotation of a picture that the file does not list is left out, as nobody would ever come across it;
//! - a picture without boxes is a sample like any other, or left out.
//!
//! What is left out is counted. Whatever cannot be understood is refused: ids that occur twice, categories that nobody has
//! described, fields that are missing or of another kind. Outlines of things (`segmentation`) are skipped unread.

mod read;

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use self::read::{Entries, RawAnnotation, RawImage};
use crate::annotations::{Annotations, Category, LeftOut, Object, Picture};
use crate::error::StoreError;
use crate::listing::{Listing, NO_LABEL};
use crate::paths::{PathRefusal, Paths};
use crate::progress::Progress;
use crate::text::excerpt;

/// How an annotation file is read.
#[derive(Clone, Debug)]
pub struct CocoOptions {
    /// The folder that file names start from.
    pub root: PathBuf,
    /// Whether labels count up from 1 in the order of the categories' ids, which leaves 0 for what is in no box; else they are
    /// those ids.
    pub contiguous: bool,
    /// Whether pictures without boxes are samples.
    pub keep_empty: bool,
    /// Whether boxes of crowds are kept.
    pub keep_crowds: bool,
    /// Whether boxes without area are an error.
    pub refuse_empty_boxes: bool,
}

impl Listing {
    /// Lists the pictures of a COCO annotation file, with their boxes as [`Listing::annotations`].
    ///
    /// The pictures themselves are not looked at until they are read.
    ///
    /// # Errors
    /// When the file is missing, is no such file, or has an entry that makes no sense; the error says which.
    pub fn coco(
        path: impl AsRef<Path>,
        options: &CocoOptions,
        progress: &dyn Progress,
    ) -> Result<Self, StoreError> {
        let path = path.as_ref();
        let entries = read::read(path)?;
        Builder { path, options, progress }.build(entries)
    }
}

struct Builder<'a> {
    path: &'a Path,
    options: &'a CocoOptions,
    progress: &'a dyn Progress,
}

/// The name of an entry in messages: its place in the file and its id.
fn entry(list: &str, index: usize, id: Option<i64>) -> String {
    id.map_or_else(|| format!("{list}[{index}]"), |id| format!("{list}[{index}] (id {id})"))
}

impl Builder<'_> {
    fn refuse(&self, reason: String, remedy: &str) -> StoreError {
        StoreError::Manifest { path: self.path.to_owned(), line: None, reason, remedy: remedy.to_owned() }
    }

    fn missing(&self, entry: &str, field: &str) -> StoreError {
        self.refuse(
            format!("{entry} has no {field}"),
            "Give every entry its fields, as COCO's files have them",
        )
    }

    fn build(&self, entries: Entries) -> Result<Listing, StoreError> {
        let Entries { images, annotations, categories } = entries;
        let Some(images) = images else {
            return Err(self.refuse(
                "there is no list \"images\" in it".to_owned(),
                "Pass a COCO annotation file of object instances, such as instances_val2017.json",
            ));
        };
        let categories = self.categories(categories)?;
        let labels: HashMap<i64, i64> =
            categories.iter().map(|(id, category)| (*id, category.label)).collect();
        let mut pictures = self.pictures(images)?;
        // In the order of ids, which is also how annotations find their picture.
        pictures.sort_unstable_by_key(|(picture, _)| picture.id);
        if let Some(pair) = pictures.windows(2).find(|pair| pair[0].0.id == pair[1].0.id) {
            let (id, names) = (pair[0].0.id, [&pair[0].1, &pair[1].1].map(|name| excerpt(name).into_owned()));
            let reason = format!("two images have the id {id}: {:?} and {:?}", names[0], names[1]);
            return Err(self.refuse(reason, "Give every image an id of its own"));
        }
        let mut left_out = LeftOut::default();
        let mut objects = self.objects(annotations, &pictures, &labels, &mut left_out)?;
        // Stable, so that the boxes of a picture stay in the order of the file.
        objects.sort_by_key(|(picture, _)| *picture);

        if !self.options.keep_empty {
            let kept = |place| objects.binary_search_by_key(&place, |(of, _)| *of).is_ok();
            left_out.pictures = (0..pictures.len()).filter(|&place| !kept(place)).count() as u64;
        }
        let categories = categories.into_iter().map(|(_, category)| category).collect();
        let mut annotations = Annotations::new(categories, left_out);
        let mut paths = Paths::new(self.progress);
        let mut rest = objects.as_slice();
        for (place, (picture, name)) in pictures.iter().enumerate() {
            let (own, others) = rest.split_at(rest.partition_point(|(of, _)| *of == place));
            rest = others;
            if own.is_empty() && !self.options.keep_empty {
                continue;
            }
            paths.push(name.as_bytes(), NO_LABEL).map_err(|refusal| match refusal {
                PathRefusal::NoFile(reason) => self.refuse(
                    format!("the image of id {} has the file_name {:?}: {reason}", picture.id, excerpt(name)),
                    "Let file_name be the path of a file below the folder of the images",
                ),
                PathRefusal::TooMany(error) => error.into(),
            })?;
            annotations.push(*picture, own.iter().map(|(_, object)| *object));
        }
        if annotations.pictures().is_empty() {
            let reason = if pictures.is_empty() {
                "there are no images in it"
            } else {
                "none of its images has a box"
            };
            return Err(
                self.refuse(reason.to_owned(), "Pass a file that lists images, or keep those without boxes")
            );
        }
        Ok(paths.into_table().into_annotated_listing(&self.options.root, annotations))
    }

    /// The categories by id, in that order.
    fn categories(&self, raw: Vec<read::RawCategory>) -> Result<Vec<(i64, Category)>, StoreError> {
        let mut categories = Vec::with_capacity(raw.len());
        for (index, raw) in raw.into_iter().enumerate() {
            let id = raw.id.ok_or_else(|| self.missing(&entry("categories", index, None), "id"))?;
            let name = raw.name.unwrap_or_else(|| id.to_string());
            categories.push((id, Category { label: id, name }));
        }
        categories.sort_by_key(|(id, _)| *id);
        if let Some(pair) = categories.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            let reason = format!(
                "two categories have the id {}: {:?} and {:?}",
                pair[0].0,
                excerpt(&pair[0].1.name),
                excerpt(&pair[1].1.name)
            );
            return Err(self.refuse(reason, "Give every category an id of its own"));
        }
        if self.options.contiguous {
            for (label, (_, category)) in (1..).zip(&mut categories) {
                category.label = label;
            }
        }
        Ok(categories)
    }

    fn pictures(&self, raw: Vec<RawImage>) -> Result<Vec<(Picture, String)>, StoreError> {
        let mut pictures = Vec::with_capacity(raw.len());
        for (index, image) in raw.into_iter().enumerate() {
            let entry = entry("images", index, image.id);
            let id = image.id.ok_or_else(|| self.missing(&entry, "id"))?;
            let name = image.file_name.ok_or_else(|| self.missing(&entry, "file_name"))?;
            let side = |side: Option<i64>, field: &str| {
                let side = side.ok_or_else(|| self.missing(&entry, field))?;
                u32::try_from(side).ok().filter(|&side| side > 0).ok_or_else(|| {
                    let reason = format!("{entry} has a {field} of {side}");
                    self.refuse(reason, "Write the width and height that the picture has, in pixels")
                })
            };
            let (width, height) = (side(image.width, "width")?, side(image.height, "height")?);
            pictures.push((Picture { id, width, height }, name));
        }
        Ok(pictures)
    }

    /// Every box that is kept, with the place of its picture.
    fn objects(
        &self,
        raw: Vec<RawAnnotation>,
        pictures: &[(Picture, String)],
        labels: &HashMap<i64, i64>,
        left_out: &mut LeftOut,
    ) -> Result<Vec<(usize, Object)>, StoreError> {
        let mut ids = HashSet::with_capacity(raw.len());
        let mut objects = Vec::with_capacity(raw.len());
        for (index, annotation) in raw.into_iter().enumerate() {
            let entry = || entry("annotations", index, annotation.id);
            if let Some(id) = annotation.id.filter(|id| !ids.insert(*id)) {
                let reason = format!(
                    "{} has the id of an annotation before it",
                    self::entry("annotations", index, Some(id))
                );
                return Err(self.refuse(reason, "Give every annotation an id of its own, or none"));
            }
            let image = annotation.image_id.ok_or_else(|| self.missing(&entry(), "image_id"))?;
            let category = annotation.category_id.ok_or_else(|| self.missing(&entry(), "category_id"))?;
            let Some(edges) = annotation.bbox else { return Err(self.missing(&entry(), "bbox")) };
            let &[x, y, width, height] = edges.as_slice() else {
                let reason = format!("{} has a bbox of {} numbers", entry(), edges.len());
                return Err(self.refuse(reason, "Write a box as [x, y, width, height]"));
            };
            let Some(&label) = labels.get(&category) else {
                let reason =
                    format!("{} is of category {category}, which is not among the categories", entry());
                return Err(self.refuse(reason, "Describe every category that occurs under \"categories\""));
            };
            let Ok(place) = pictures.binary_search_by_key(&image, |(picture, _)| picture.id) else {
                left_out.strays += 1;
                continue;
            };
            if annotation.iscrowd && !self.options.keep_crowds {
                left_out.crowds += 1;
                continue;
            }
            let picture = &pictures[place].0;
            let Some(edges) = edges_within(picture, [x, y, width, height]) else {
                if self.options.refuse_empty_boxes {
                    let reason = format!(
                        "{} has the box [{x}, {y}, {width}, {height}], which has no area inside its picture of {}x{} pixels",
                        entry(),
                        picture.width,
                        picture.height
                    );
                    return Err(self.refuse(reason, "Correct it, or leave such boxes out"));
                }
                left_out.empty_boxes += 1;
                continue;
            };
            let [left, top, right, bottom] = edges;
            let area = annotation.area.map_or((right - left) * (bottom - top), |area| area as f32);
            objects.push((place, Object { edges, label, area, crowd: annotation.iscrowd }));
        }
        Ok(objects)
    }
}

/// The edges of a box given by its corner and sides, cut at the edges of its picture; `None` when nothing is left.
///
/// In 32 bits, step by step as torchvision converts and clamps boxes, so that the values are the same to the last bit.
fn edges_within(picture: &Picture, [x, y, width, height]: [f64; 4]) -> Option<[f32; 4]> {
    let (left, top) = (x as f32, y as f32);
    let (right, bottom) = (left + width as f32, top + height as f32);
    let (most_x, most_y) = (picture.width as f32, picture.height as f32);
    let edges = [
        left.clamp(0.0, most_x),
        top.clamp(0.0, most_y),
        right.clamp(0.0, most_x),
        bottom.clamp(0.0, most_y),
    ];
    (edges[2] > edges[0] && edges[3] > edges[1]).then_some(edges)
}
