//! The agent's status in the text format that Prometheus reads.

use std::fmt::Write;

use serde_json::Value;

/// One metric: its name, what it means, and whether it only grows.
struct Metric<'a> {
    name: &'a str,
    help: &'a str,
    kind: &'a str,
}

/// The metrics of a job, with the place of each in its status.
const JOB: [(Metric<'static>, &str); 8] = [
    (counter("sutler_job_samples_total", "Samples delivered."), "/samples"),
    (counter("sutler_job_batches_total", "Batches delivered."), "/batches"),
    (counter("sutler_job_failed_total", "Samples that failed."), "/failed"),
    (counter("sutler_job_wait_seconds_total", "Time the job was blocked."), "/wait_seconds"),
    (counter("sutler_job_storage_reads_total", "Read requests to storage."), "/storage_reads"),
    (counter("sutler_job_storage_bytes_total", "Bytes read from storage."), "/storage_bytes"),
    (gauge("sutler_job_samples_per_second", "Samples delivered per second of late."), "/samples_per_s"),
    (gauge("sutler_job_memory_bytes", "Memory of its batches."), "/memory_bytes"),
];

/// Those that have a value for each of several parts: the label that tells the parts apart, and their place.
const JOB_PARTS: [(Metric<'static>, &str, &str); 2] = [
    (
        counter("sutler_job_served_total", "Samples delivered, by the form they were found in."),
        "form",
        "/served",
    ),
    (counter("sutler_job_stall_seconds_total", "Where the job's time went."), "to", "/stalls"),
];

/// The metrics of a dataset.
const DATASET: [(Metric<'static>, &str); 9] = [
    (gauge("sutler_dataset_jobs", "Jobs attached."), "/jobs"),
    (gauge("sutler_cache_budget_bytes", "What kept samples may take."), "/cache/budget_bytes"),
    (gauge("sutler_cache_used_bytes", "What kept samples take."), "/cache/used_bytes"),
    (gauge("sutler_cache_encoded_bytes", "Bytes kept encoded."), "/cache/encoded/bytes"),
    (gauge("sutler_cache_decoded_bytes", "Bytes kept decoded."), "/cache/decoded/bytes"),
    (counter("sutler_cache_evicted_total", "Kept samples that left for others."), "/cache/evicted"),
    (gauge("sutler_window_used_bytes", "What the shared window takes."), "/window/window_bytes"),
    (gauge("sutler_window_budget_bytes", "What the shared window may take."), "/window/window_bytes_max"),
    (counter("sutler_plan_changes_total", "How often the split was changed."), "/plan/changes"),
];

const fn counter(name: &'static str, help: &'static str) -> Metric<'static> {
    Metric { name, help, kind: "counter" }
}

const fn gauge(name: &'static str, help: &'static str) -> Metric<'static> {
    Metric { name, help, kind: "gauge" }
}

/// The text for a status.
pub fn of(status: &Value) -> String {
    let mut text = Text::default();
    text.metric(
        &gauge("sutler_agent_threads", "Threads that prepare samples."),
        [(labels(&[("version", text_of(&status["version"]))]), &status["threads"])],
    );
    let jobs: Vec<(String, &Value)> = items(&status["jobs"]).map(|job| (job_labels(job), job)).collect();
    for (metric, place) in &JOB {
        text.metric(
            metric,
            jobs.iter().filter_map(|(labels, job)| Some((labels.clone(), job.pointer(place)?))),
        );
    }
    for (metric, label, place) in &JOB_PARTS {
        let parts = jobs.iter().flat_map(|(labels, job)| {
            let parts = job.pointer(place).and_then(Value::as_object).into_iter().flatten();
            parts.map(move |(part, value)| (format!("{labels},{label}=\"{}\"", escaped(part)), value))
        });
        text.metric(metric, parts);
    }
    let datasets: Vec<(String, &Value)> = items(&status["shared"]["datasets"])
        .map(|dataset| (labels(&[("dataset", text_of(&dataset["place"]))]), dataset))
        .collect();
    for (metric, place) in &DATASET {
        let found =
            datasets.iter().filter_map(|(labels, dataset)| Some((labels.clone(), dataset.pointer(place)?)));
        text.metric(metric, found);
    }
    text.0
}

#[derive(Default)]
struct Text(String);

impl Text {
    /// A metric and its values; nothing of one that has none.
    fn metric<'a>(&mut self, metric: &Metric<'_>, values: impl IntoIterator<Item = (String, &'a Value)>) {
        let Metric { name, help, kind } = metric;
        let mut begun = false;
        for (labels, value) in values {
            let Some(value) = value.as_f64() else { continue };
            if !begun {
                // Writing to a string cannot fail.
                let _ = write!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
                begun = true;
            }
            let _ = writeln!(self.0, "{name}{{{labels}}} {value}");
        }
    }
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text_of(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// What tells a job from others: jobs without a name, and the ranks of one, by their process and connection.
fn job_labels(job: &Value) -> String {
    let client = job["client"].to_string();
    let pid = job["pid"].to_string();
    labels(&[
        ("job", text_of(&job["name"])),
        ("pid", &pid),
        ("client", &client),
        ("dataset", text_of(&job["dataset"])),
    ])
}

fn labels(pairs: &[(&str, &str)]) -> String {
    let each: Vec<String> =
        pairs.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
    each.join(",")
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_figure_has_its_line_and_names_cannot_break_out() {
        let status = json!({
            "version": "1.0", "threads": 4,
            "jobs": [{
                "name": "a\"b\\c\nd", "pid": 7, "client": 2, "dataset": "/data", "samples": 12, "batches": 3,
                "samples_per_s": 1.5, "served": { "storage": 4, "decoded": 8 }, "stalls": { "fetch": 0.25 },
            }],
            "shared": { "datasets": [{ "place": "/data", "jobs": 1, "cache": { "encoded": { "bytes": 9 } }, "plan": null }] },
        });
        let text = of(&status);
        let job = r#"job="a\"b\\c\nd",pid="7",client="2",dataset="/data""#;
        for line in [
            "# TYPE sutler_job_samples_total counter".to_owned(),
            r#"sutler_agent_threads{version="1.0"} 4"#.to_owned(),
            format!("sutler_job_samples_total{{{job}}} 12"),
            format!("sutler_job_samples_per_second{{{job}}} 1.5"),
            format!(r#"sutler_job_served_total{{{job},form="decoded"}} 8"#),
            format!(r#"sutler_job_stall_seconds_total{{{job},to="fetch"}} 0.25"#),
            r#"sutler_cache_encoded_bytes{dataset="/data"} 9"#.to_owned(),
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\nis not in\n{text}");
        }
        assert!(!text.contains("sutler_plan"), "what there is not has no line:\n{text}");
    }
}
