//! What `sutler inspect` tells of a COCO annotation file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Serialize;
use sutler_core::SampleId;
use sutler_store::{Annotations, CocoOptions, LeftOut};

use crate::report;

/// How many categories the table names; `--json` names them all.
const CATEGORIES_SHOWN: usize = 20;

/// Whether a path is that of an annotation file: manifests end otherwise.
pub fn is_annotation_file(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json"))
}

/// How an annotation file is read whose pictures are in this folder, or where they are most likely.
pub fn coco_options(annotations: &Path, images: Option<&Path>) -> CocoOptions {
    let root = images.map_or_else(|| images_of(annotations), Path::to_owned);
    CocoOptions { root, contiguous: false, keep_empty: true, keep_crowds: true, refuse_empty_boxes: false }
}

/// The folder of the pictures: COCO's has `annotations/instances_val2017.json` beside `val2017`, others have the file among or
/// beside the pictures.
fn images_of(annotations: &Path) -> PathBuf {
    let folder = annotations.parent().unwrap_or(Path::new("")).to_owned();
    let stem = annotations.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    let split = stem.rsplit('_').next().unwrap_or_default().to_owned();
    let beside = folder.join("..");
    let likely =
        [beside.join(&split), beside.join("images").join(&split), folder.join(&split), folder.join("images")];
    likely.into_iter().find(|likely| !split.is_empty() && likely.is_dir()).unwrap_or(folder)
}

/// What an annotation file says.
#[derive(Serialize)]
pub struct BoxFacts {
    boxes: u64,
    crowds: u64,
    images_without_boxes: u64,
    categories: BTreeMap<String, u64>,
    left_out: BTreeMap<&'static str, u64>,
}

impl BoxFacts {
    pub fn of(annotations: &Annotations) -> Self {
        let names: BTreeMap<i64, &str> = annotations
            .categories()
            .iter()
            .map(|category| (category.label, category.name.as_str()))
            .collect();
        let mut categories: BTreeMap<String, u64> =
            names.values().map(|name| ((*name).to_owned(), 0)).collect();
        let (mut crowds, mut empty) = (0, 0);
        for sample in (0..annotations.pictures().len() as u32).map(SampleId) {
            let objects = annotations.objects(sample);
            empty += u64::from(objects.is_empty());
            for object in objects {
                crowds += u64::from(object.crowd);
                if let Some(count) = names.get(&object.label).and_then(|name| categories.get_mut(*name)) {
                    *count += 1;
                }
            }
        }
        let LeftOut { empty_boxes, strays, .. } = annotations.left_out();
        Self {
            boxes: annotations.boxes() as u64,
            crowds,
            images_without_boxes: empty,
            categories,
            left_out: BTreeMap::from([("invalid_boxes", empty_boxes), ("strays", strays)]),
        }
    }

    pub fn text(&self) -> String {
        let mut text = format!(
            "{} boxes in {} categories, {} of them crowds; {} images have none\n\n",
            report::count(self.boxes),
            report::count(self.categories.len() as u64),
            report::count(self.crowds),
            report::count(self.images_without_boxes)
        );
        let mut most: Vec<(&String, &u64)> = self.categories.iter().collect();
        most.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        let rows: Vec<Vec<String>> = most
            .iter()
            .take(CATEGORIES_SHOWN)
            .map(|(name, count)| vec![(*name).clone(), report::count(**count)])
            .collect();
        text += &report::table(&["category", "boxes"], &rows);
        if most.len() > CATEGORIES_SHOWN {
            text += &format!("… and {} more; --json lists all.\n", most.len() - CATEGORIES_SHOWN);
        }
        for (name, what) in [
            ("invalid_boxes", "boxes have no area inside their picture, and are left out"),
            ("strays", "annotations are of pictures that the file does not list, and are left out"),
        ] {
            if let Some(count) = self.left_out.get(name).filter(|count| **count > 0) {
                text += &format!("\n{} {what}.\n", report::count(*count));
            }
        }
        text + "\n"
    }
}
