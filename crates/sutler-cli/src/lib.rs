//! The `sutler` command: the same from the wheel's console script and from `python -m sutler`.
//!
//! Every command prints facts a person reads, or with `--json` the same facts for a program; it exits with 0 when done, 1
//! when the job failed and 2 for wrong arguments.

mod analyze;
mod bench;
mod boxes;
mod dataset;
mod demo;
mod inspect;
mod inspect_text;
pub mod photos;
pub mod plan;
mod prepare;
mod report;
mod serve;
pub mod volumes;

pub use analyze::Analyze;
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};

/// Feeds training jobs so that the accelerator never waits.
#[derive(Parser)]
#[command(name = "sutler", version, about, propagate_version = true, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Demo(demo::Demo),
    Bench(bench::Bench),
    Analyze(Analyze),
    Inspect(inspect::Inspect),
    Plan(plan::Plan),
    Prepare(prepare::Prepare),
    Serve(serve::Serve),
}

/// Why a command failed, as the sentences a person reads.
pub type Failed = Box<dyn std::error::Error + Send + Sync>;

/// Runs the command line with these arguments (without the program's name). `python` is the interpreter that can run
/// peers for comparison, where there is one. `analyse` carries an analysis out: what it measures are loaders, so it lives
/// where they do. Returns the exit code.
#[must_use]
pub fn run(
    arguments: &[String],
    python: Option<&str>,
    analyse: &dyn Fn(&Analyze) -> Result<(), Failed>,
) -> u8 {
    let named = std::iter::once("sutler").chain(arguments.iter().map(String::as_str));
    let parsed = match Arguments::try_parse_from(named) {
        Ok(parsed) => parsed,
        Err(error) => {
            // Help and version are answers; everything else is a wrong argument.
            let code = if error.use_stderr() { 2 } else { 0 };
            let _ = error.print();
            return code;
        }
    };
    if let Some(error) = contradiction(&parsed.command) {
        let _ = error.print();
        return 2;
    }
    let result = match parsed.command {
        Command::Demo(demo) => demo.run(python),
        Command::Bench(bench) => bench.run(),
        Command::Analyze(analyze) => analyse(&analyze),
        Command::Inspect(inspect) => inspect.run(),
        Command::Plan(plan) => plan.run(),
        Command::Prepare(prepare) => prepare.run(),
        Command::Serve(serve) => serve.run(),
    };
    match result {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("error: {error}");
            1
        }
    }
}

/// What is wrong with the arguments of a command that only all of them together show.
fn contradiction(command: &Command) -> Option<clap::Error> {
    let (path, text): (&[&str], String) = match command {
        Command::Serve(serve) => (&["serve"], serve.contradiction()?),
        Command::Prepare(prepare) => (&["prepare", "volumes"], prepare.contradiction()?),
        _ => return None,
    };
    Some(refusal(path, text))
}

/// What is wrong with the arguments of a command, with the usage of that very command beside it. `path` has the names that lead to it.
fn refusal(path: &[&str], text: String) -> clap::Error {
    let mut command = Arguments::command();
    command.build();
    for name in path {
        if let Some(inner) = command.find_subcommand(name).cloned() {
            command = inner;
        }
    }
    command.error(ErrorKind::ArgumentConflict, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_refused_is_told_by_its_option_with_the_usage_of_its_command() {
        let told = |arguments: &str| {
            let parsed =
                Arguments::try_parse_from(arguments.split(' ')).unwrap_or_else(|error| panic!("{error}"));
            contradiction(&parsed.command).map(|error| error.to_string())
        };
        for (options, sentence) in [
            ("--clip=3,1", "--clip should have the lower bound first and then the upper one, but is 3,1"),
            ("--std 0", "--std should be from 1e-30 to 1e30, but is 0"),
            ("--min-shape 0,1,1", "--min-shape should have sides from 1 to 4096, but is 0,1,1"),
        ] {
            let told = told(&format!("sutler prepare volumes scans done {options}")).unwrap();
            assert!(told.contains(&format!("error: {sentence}\n")), "{told}");
            assert!(told.contains("Usage: sutler prepare volumes [OPTIONS] <SRC> <DST>"), "{told}");
            assert!(told.contains("try '--help'"), "{told}");
        }
        assert_eq!(told("sutler prepare volumes scans done --clip=-5,5"), None);
        assert!(told("sutler serve --split 58-42-0").unwrap().contains("Usage: sutler serve"));
    }
}
