//! What is on the pictures of a batch, as arrays.

use pyo3::PyErr;
use pyo3::exceptions::PyValueError;
use sutler_core::SampleId;
use sutler_media::MovedBox;
use sutler_store::Annotations;

use crate::array::Array;

/// Of all boxes of a batch, picture by picture: where those of each picture end; edges, labels, areas and crowds. Of all
/// pictures: id, height and width as they are, height and width in their files.
pub type Targets = (Vec<usize>, Array, Array, Array, Array, Array, Array, Array);

pub fn no_boxes() -> PyErr {
    PyValueError::new_err("the pictures of this dataset have no boxes")
}

/// The boxes of these samples after the transforms, with what the annotations say of them.
pub fn targets(
    annotations: &Annotations,
    ids: &[SampleId],
    sizes: &[[u32; 2]],
    boxes: &[Vec<MovedBox>],
) -> Targets {
    let count = boxes.iter().map(Vec::len).sum();
    let mut ends = Vec::with_capacity(ids.len());
    let mut edges = Vec::with_capacity(count * 4);
    let (mut labels, mut areas, mut crowds) =
        (Vec::with_capacity(count), Vec::with_capacity(count), Vec::with_capacity(count));
    for (&id, boxes) in ids.iter().zip(boxes) {
        let objects = annotations.objects(id);
        for (moved, object) in
            boxes.iter().filter_map(|moved| Some((moved, objects.get(moved.index as usize)?)))
        {
            edges.extend(moved.edges);
            labels.push(object.label);
            areas.push(object.area);
            crowds.push(i64::from(object.crowd));
        }
        ends.push(labels.len());
    }
    let pictures = || ids.iter().map(|&id| annotations.picture(id));
    let pairs = |pairs: Vec<[u32; 2]>| {
        Array::rows_of_integers(pairs.into_iter().flatten().map(i64::from).collect(), 2)
    };
    (
        ends,
        Array::rows_of_floats(edges, 4),
        Array::integers(labels),
        Array::row_of_floats(areas),
        Array::integers(crowds),
        Array::integers(pictures().map(|picture| picture.id).collect()),
        pairs(sizes.to_vec()),
        pairs(pictures().map(|picture| [picture.height, picture.width]).collect()),
    )
}
