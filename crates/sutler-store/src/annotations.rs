//! What is drawn on the pictures of a dataset: boxes, each with a category.

use sutler_core::{FingerprintBuilder, SampleId};

/// A kind of thing that a box may hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Category {
    /// What a box of it carries as its label.
    pub label: i64,
    /// What the annotation file calls it.
    pub name: String,
}

/// A picture as its annotations see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Picture {
    /// Its number in the annotation file.
    pub id: i64,
    /// Width in pixels, which boxes are counted in.
    pub width: u32,
    /// Height in pixels.
    pub height: u32,
}

impl Picture {
    /// Compares with the size that the picture's file has.
    ///
    /// # Errors
    /// When it is another, in a sentence that says so.
    pub fn check(&self, width: u32, height: u32) -> Result<(), String> {
        if (self.width, self.height) == (width, height) {
            return Ok(());
        }
        Err(format!(
            "the annotations say that it has {}x{} pixels, but it has {width}x{height}, so its boxes would be in the wrong \
             places; correct its width and height in the annotation file",
            self.width, self.height
        ))
    }
}

/// A box and what is in it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Object {
    /// Left, top, right and bottom edge, in pixels of the picture as its annotations see it.
    pub edges: [f32; 4],
    /// The category's label.
    pub label: i64,
    /// How many pixels belong to it, which may be fewer than its box has.
    pub area: f32,
    /// Whether it is a crowd, which stands for any number of things.
    pub crowd: bool,
}

/// What had to be left out, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Boxes without any area inside their picture.
    pub empty_boxes: u64,
    /// Boxes of crowds, where those are not wanted.
    pub crowds: u64,
    /// Annotations of pictures that the file does not list.
    pub strays: u64,
    /// Pictures without boxes, where those are not wanted.
    pub pictures: u64,
}

/// The boxes of all samples of a dataset.
#[derive(Clone, Debug, Default)]
pub struct Annotations {
    categories: Vec<Category>,
    pictures: Vec<Picture>,
    /// Where the objects of each picture end.
    ends: Vec<usize>,
    objects: Vec<Object>,
    left_out: LeftOut,
}

impl Annotations {
    pub(crate) fn new(categories: Vec<Category>, left_out: LeftOut) -> Self {
        Self { categories, left_out, ..Self::default() }
    }

    /// Adds the next sample and its boxes.
    pub(crate) fn push(&mut self, picture: Picture, objects: impl IntoIterator<Item = Object>) {
        self.pictures.push(picture);
        self.objects.extend(objects);
        self.ends.push(self.objects.len());
    }

    /// The kinds of things, by label.
    #[must_use]
    pub fn categories(&self) -> &[Category] {
        &self.categories
    }

    /// What had to be left out.
    #[must_use]
    pub fn left_out(&self) -> LeftOut {
        self.left_out
    }

    /// How many boxes there are in all.
    #[must_use]
    pub fn boxes(&self) -> usize {
        self.objects.len()
    }

    /// All pictures, by sample.
    #[must_use]
    pub fn pictures(&self) -> &[Picture] {
        &self.pictures
    }

    /// A sample's picture.
    ///
    /// # Panics
    /// When there is no such sample.
    #[must_use]
    pub fn picture(&self, sample: SampleId) -> &Picture {
        &self.pictures[sample.index()]
    }

    /// What is on a sample's picture, in the order of the annotation file.
    ///
    /// # Panics
    /// When there is no such sample.
    #[must_use]
    pub fn objects(&self, sample: SampleId) -> &[Object] {
        let start = sample.index().checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.objects[start..self.ends[sample.index()]]
    }

    /// Only the samples of these indices, in this order.
    pub(crate) fn select(&self, samples: impl Iterator<Item = SampleId>) -> Self {
        let mut selected = Self::new(self.categories.clone(), self.left_out);
        for sample in samples {
            selected.push(*self.picture(sample), self.objects(sample).iter().copied());
        }
        selected
    }

    /// Adds all of it to a fingerprint: with other boxes it is another dataset.
    pub(crate) fn add_to(&self, builder: &mut FingerprintBuilder) {
        for category in &self.categories {
            builder.add(category.label.to_le_bytes()).add(&category.name);
        }
        let mut bytes = Vec::new();
        for (index, picture) in self.pictures.iter().enumerate() {
            bytes.clear();
            bytes.extend(picture.id.to_le_bytes());
            bytes.extend(picture.width.to_le_bytes());
            bytes.extend(picture.height.to_le_bytes());
            for object in self.objects(SampleId(index as u32)) {
                object.edges.iter().for_each(|edge| bytes.extend(edge.to_le_bytes()));
                bytes.extend(object.label.to_le_bytes());
                bytes.extend(object.area.to_le_bytes());
                bytes.push(u8::from(object.crowd));
            }
            builder.add(&bytes);
        }
    }
}
