//! COCO annotation files: what they mean, what is mended, and how they are refused.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use sutler_core::SampleId;
use sutler_store::{CocoOptions, Files, Io, LeftOut, Listing, Object, Silent, Source, StoreError};

fn options() -> CocoOptions {
    CocoOptions {
        root: "data".into(),
        contiguous: false,
        keep_empty: true,
        keep_crowds: true,
        refuse_empty_boxes: false,
    }
}

/// Lists an annotation file with this content in a folder of its own.
fn listed(content: impl AsRef<[u8]>, options: &CocoOptions) -> Result<Listing, StoreError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.json");
    fs::write(&path, content).unwrap();
    Listing::coco(&path, options, &Silent)
}

/// The message without the folder, which is another one each time.
fn message(content: impl AsRef<[u8]>) -> String {
    let error = listed(content, &options()).unwrap_err();
    assert_eq!(error.kind(), "manifest");
    let message = error.to_string();
    message[message.find("a.json").unwrap()..].to_owned()
}

/// Two pictures out of order, two categories with a gap between them, and boxes on both pictures.
fn example() -> Value {
    json!({
        "info": {"year": 2017},
        "annotations": [
            {"id": 1, "image_id": 9, "category_id": 7, "bbox": [1, 2, 3, 4], "area": 6.5, "iscrowd": 0, "segmentation": [[1, 2]]},
            {"id": 2, "image_id": 4, "category_id": 2, "bbox": [0.5, 0, 2, 2], "iscrowd": 1},
            {"id": 3, "image_id": 9, "category_id": 2, "bbox": [90.0, 40.0, 20.0, 20.0], "area": 400},
        ],
        "images": [
            {"id": 9, "file_name": "b/nine.jpg", "width": 100, "height": 50, "license": 3},
            {"id": 4, "file_name": "four.jpg", "width": 10.0, "height": 20},
        ],
        "categories": [{"id": 7, "name": "zebra", "supercategory": "animal"}, {"id": 2, "name": "ape"}],
    })
}

fn with(change: impl FnOnce(&mut Value)) -> String {
    let mut value = example();
    change(&mut value);
    value.to_string()
}

#[test]
fn a_byte_order_mark_is_passed_over_and_what_is_no_number_is_named() {
    let marked = [b"\xEF\xBB\xBF".as_slice(), example().to_string().as_bytes()].concat();
    let plain = listed(example().to_string(), &options()).unwrap();
    assert_eq!(listed(marked, &options()).unwrap().fingerprint(), plain.fingerprint());
    for word in ["NaN", "Infinity", "-Infinity"] {
        let wrong = example().to_string().replacen("[1,2,3,4]", &format!("[\n1,{word},3,4]"), 1);
        let told = message(wrong);
        assert!(told.starts_with(&format!("a.json, line 2: {word} is no number that JSON has")), "{told}");
    }
    assert!(message(b"{\"images\": [nothing]}").contains("expected"));
}

#[test]
fn samples_come_by_id_and_boxes_in_the_order_of_the_file() {
    let listing = listed(example().to_string(), &options()).unwrap();
    assert_eq!(listing.classes(), ["ape", "zebra"]);
    assert_eq!(listing.path(SampleId(0)), Path::new("data/four.jpg"));
    assert_eq!(listing.path(SampleId(1)), Path::new("data/b/nine.jpg"));
    let annotations = listing.annotations().unwrap();
    let picture = annotations.picture(SampleId(1));
    assert_eq!((picture.id, picture.width, picture.height), (9, 100, 50));
    assert_eq!(
        annotations.objects(SampleId(0)),
        [Object { edges: [0.5, 0.0, 2.5, 2.0], label: 2, area: 4.0, crowd: true }]
    );
    assert_eq!(
        annotations.objects(SampleId(1)),
        [
            Object { edges: [1.0, 2.0, 4.0, 6.0], label: 7, area: 6.5, crowd: false },
            // Cut at the edges of its picture; the area is what the file says.
            Object { edges: [90.0, 40.0, 100.0, 50.0], label: 2, area: 400.0, crowd: false },
        ]
    );
    assert_eq!((annotations.boxes(), annotations.left_out()), (3, LeftOut::default()));
    let files = Files::new(listing, Io::Buffered, 1 << 20);
    assert_eq!(files.annotations().unwrap().boxes(), 3);
}

#[test]
fn contiguous_labels_count_from_one_in_the_order_of_ids() {
    let listing = listed(example().to_string(), &CocoOptions { contiguous: true, ..options() }).unwrap();
    let annotations = listing.annotations().unwrap();
    let labels: Vec<i64> = annotations.objects(SampleId(1)).iter().map(|object| object.label).collect();
    assert_eq!(labels, [2, 1]);
    let categories: Vec<(i64, &str)> =
        annotations.categories().iter().map(|category| (category.label, category.name.as_str())).collect();
    assert_eq!(categories, [(1, "ape"), (2, "zebra")]);
}

#[test]
fn what_is_not_wanted_is_left_out_and_counted() {
    let content = with(|value| {
        let annotations = value["annotations"].as_array_mut().unwrap();
        for bbox in [json!([5, 5, 0, 3]), json!([5, 5, -2, 3]), json!([200, 0, 5, 5]), json!([-9, 0, 5, 5])] {
            annotations.push(json!({"image_id": 9, "category_id": 2, "bbox": bbox}));
        }
        annotations.push(json!({"image_id": 77, "category_id": 2, "bbox": [0, 0, 1, 1]}));
    });
    let options = CocoOptions { keep_empty: false, keep_crowds: false, ..options() };
    let listing = listed(&content, &options).unwrap();
    assert_eq!(listing.len(), 1, "the picture that had nothing but a crowd is gone");
    let annotations = listing.annotations().unwrap();
    assert_eq!(annotations.objects(SampleId(0)).len(), 2);
    assert_eq!(annotations.left_out(), LeftOut { empty_boxes: 4, crowds: 1, strays: 1, pictures: 1 });
    let refused =
        listed(&content, &CocoOptions { refuse_empty_boxes: true, ..options }).unwrap_err().to_string();
    assert!(
        refused.contains(
            "annotations[3] has the box [5, 5, 0, 3], which has no area inside its picture of 100x50 pixels."
        ),
        "{refused}"
    );
}

#[test]
fn pictures_without_annotations_are_samples() {
    let listing = listed(json!({"images": example()["images"]}).to_string(), &options()).unwrap();
    assert_eq!((listing.len(), listing.annotations().unwrap().boxes()), (2, 0));
    assert!(listing.classes().is_empty());
}

#[test]
fn the_fingerprint_sees_boxes_and_labels() {
    let of = |content: String, options: &CocoOptions| listed(content, options).unwrap().fingerprint();
    let first = of(example().to_string(), &options());
    assert_eq!(first, of(example().to_string(), &CocoOptions { root: "elsewhere".into(), ..options() }));
    assert_ne!(first, of(example().to_string(), &CocoOptions { contiguous: true, ..options() }));
    assert_ne!(first, of(with(|value| value["annotations"][0]["bbox"][0] = json!(1.5)), &options()));
    assert_ne!(first, of(with(|value| value["annotations"][0]["iscrowd"] = json!(1)), &options()));
    assert_ne!(first, of(with(|value| value["images"][0]["width"] = json!(101)), &options()));
}

#[test]
fn a_part_of_a_listing_keeps_its_boxes() {
    let listing = listed(example().to_string(), &options()).unwrap().retain(|id| id.0 == 1);
    let annotations = listing.annotations().unwrap();
    assert_eq!((annotations.picture(SampleId(0)).id, annotations.objects(SampleId(0)).len()), (9, 2));
}

#[test]
fn entries_that_make_no_sense_are_named() {
    let drop_field = |list: &str, index: usize, field: &str| {
        let (list, field) = (list.to_owned(), field.to_owned());
        with(move |value| {
            value[&list][index].as_object_mut().unwrap().remove(&field);
        })
    };
    let set = |list: &str, index: usize, field: &str, to: Value| {
        let (list, field) = (list.to_owned(), field.to_owned());
        with(move |value| value[&list][index][&field] = to)
    };
    for (content, expected) in [
        (drop_field("images", 0, "id"), "images[0] has no id."),
        (drop_field("images", 0, "file_name"), "images[0] (id 9) has no file_name."),
        (drop_field("images", 1, "width"), "images[1] (id 4) has no width."),
        (set("images", 1, "height", json!(-5)), "images[1] (id 4) has a height of -5."),
        (set("images", 1, "height", json!(0)), "images[1] (id 4) has a height of 0."),
        (set("images", 1, "id", json!(9)), "two images have the id 9: \"b/nine.jpg\" and \"four.jpg\"."),
        (
            set("images", 1, "file_name", json!("a/")),
            "the image of id 4 has the file_name \"a/\": the path ends in a slash",
        ),
        (
            set("images", 1, "file_name", json!("")),
            "the image of id 4 has the file_name \"\": the row has no path",
        ),
        (drop_field("annotations", 2, "image_id"), "annotations[2] (id 3) has no image_id."),
        (drop_field("annotations", 2, "category_id"), "annotations[2] (id 3) has no category_id."),
        (drop_field("annotations", 2, "bbox"), "annotations[2] (id 3) has no bbox."),
        (set("annotations", 2, "bbox", json!([1, 2, 3])), "annotations[2] (id 3) has a bbox of 3 numbers."),
        (
            set("annotations", 2, "id", json!(1)),
            "annotations[2] (id 1) has the id of an annotation before it.",
        ),
        (
            set("annotations", 2, "category_id", json!(5)),
            "annotations[2] (id 3) is of category 5, which is not among the categories.",
        ),
        (set("categories", 0, "id", json!(2)), "two categories have the id 2: \"zebra\" and \"ape\"."),
        (drop_field("categories", 1, "id"), "categories[1] has no id."),
        (json!({"images": []}).to_string(), "there are no images in it."),
        (json!({"annotations": []}).to_string(), "there is no list \"images\" in it."),
    ] {
        let message = message(&content);
        assert!(message.contains(expected), "{message}\nfor {expected}");
        assert!(message.ends_with('.') && message.matches(". ").count() >= 1, "a remedy follows: {message}");
    }
}

#[test]
fn what_is_no_json_or_of_another_kind_is_refused_with_its_place() {
    for (content, expected) in [
        ("", "The file ends too early"),
        ("{\"images\": [{\"id\": 1", "The file ends too early"),
        ("[1, 2]", "an object with the lists images, annotations and categories"),
        ("{\"images\": 3}", "expected a sequence"),
        ("{\"images\": [3]}", "an image, as an object with the fields id, file_name, width and height"),
        ("{\"images\": [{\"id\": \"x\"}]}", "invalid type: string \"x\", expected a whole number (column"),
        ("{\"images\": [{\"id\": 1.5}]}", "1.5 is not a whole number"),
        ("{\"annotations\": [{\"iscrowd\": 2}]}", "2 is neither 0 nor 1"),
        ("{\"annotations\": [{\"bbox\": [1, 2, NaN, 4]}]}", "NaN is no number that JSON has (column 34)"),
        ("{\"annotations\": [{\"bbox\": [1, 2, 1e999, 4]}]}", "number out of range (column"),
        ("\u{0}\u{1}\u{2}", "expected value (column"),
    ] {
        let message = message(content);
        assert!(message.contains(expected), "{message}\nfor {expected}");
        assert!(message.starts_with("a.json, line "), "{message}");
    }
    let missing = Listing::coco("nowhere.json", &options(), &Silent).unwrap_err();
    assert_eq!(missing.kind(), "missing");
}
