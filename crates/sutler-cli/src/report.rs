//! How figures are shown: tables for people, JSON for programs, a bar while somebody waits.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
pub use sutler_core::{counted, grouped as count};

/// Prints a table with a heading; the first column is left-aligned, the others right-aligned.
pub fn table(heading: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain([heading[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..heading.len()).map(width).collect();
    let line = |cells: Vec<&str>| {
        let mut text = String::from(" ");
        for (column, cell) in cells.into_iter().enumerate() {
            let padding = " ".repeat(widths[column].saturating_sub(cell.chars().count()));
            text += &if column == 0 { format!(" {cell}{padding}") } else { format!("  {padding}{cell}") };
        }
        text.trim_end().to_owned() + "\n"
    };
    let rule: String = widths.iter().map(|w| "─".repeat(*w)).collect::<Vec<_>>().join("──");
    let mut text = line(heading.to_vec());
    text += &format!("  {rule}\n");
    for row in rows {
        text += &line(row.iter().map(String::as_str).collect());
    }
    text
}

/// Bytes in the unit that suits them.
pub fn bytes(value: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut scaled = value as f64;
    let mut unit = 0;
    while scaled >= 1024.0 && unit + 1 < units.len() {
        scaled /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{value} B") } else { format!("{scaled:.1} {}", units[unit]) }
}

/// Seconds in the unit that suits them.
pub fn seconds(value: f64) -> String {
    if value >= 1.0 {
        format!("{value:.2} s")
    } else if value >= 1e-3 {
        format!("{:.2} ms", value * 1e3)
    } else {
        format!("{:.1} µs", value * 1e6)
    }
}

/// A share as a percentage.
pub fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// The middle value; 0 for none.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}

/// A bar on the terminal while something long goes on; silent elsewhere.
pub fn progress(total: u64, what: &str) -> ProgressBar {
    progress_if(None, total, what)
}

/// The same, shown or not whatever there is.
pub fn progress_if(shown: Option<bool>, total: u64, what: &str) -> ProgressBar {
    let bar = ProgressBar::new(total);
    bar.set_draw_target(if shown.unwrap_or_else(|| std::io::stderr().is_terminal()) {
        ProgressDrawTarget::stderr_with_hz(10)
    } else {
        ProgressDrawTarget::hidden()
    });
    if let Ok(style) =
        ProgressStyle::with_template("{msg} {bar:40} {human_pos}/{human_len} ({per_sec}, {eta} left)")
    {
        bar.set_style(style);
    }
    bar.set_message(what.to_owned());
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

/// Prints to standard output; a reader that went away (`| head`) is not an error.
pub fn print(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_read_well() {
        assert_eq!(count(0), "0");
        assert_eq!(count(999), "999");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(bytes(1000), "1000 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(seconds(0.0123), "12.30 ms");
        assert_eq!(seconds(2.0), "2.00 s");
        assert_eq!(percent(0.125), "12.5 %");
        assert!((median(&[3.0, 1.0, 2.0]) - 2.0).abs() < 1e-12);
        assert!((median(&[4.0, 1.0]) - 2.5).abs() < 1e-12);
    }

    #[test]
    fn columns_line_up() {
        let text = table(
            &["stage", "mean"],
            &[vec!["fetch".into(), "1 ms".into()], vec!["decode".into(), "12 ms".into()]],
        );
        assert_eq!(text, "  stage    mean\n  ─────────────\n  fetch    1 ms\n  decode  12 ms\n");
    }
}
